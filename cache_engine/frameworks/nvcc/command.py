"""A command of nvcc as the launcher understands it. A command with an unknown option passes through to nvcc.

The launcher understands the options in the tables of this module. The key has an option's value and position, or a
number in place of a path that the option names; an option that does not affect the output is not in the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence


class PassThrough(Exception):
    """A command that nvcc must run itself, uncached. The text is one of a few reasons, by which ``stats`` counts."""


# Of each option: its long name, and the short one where it differs.
_FLAGS = (
    "expt-relaxed-constexpr", "expt-extended-lambda", "extended-lambda", "use_fast_math", "extra-device-vectorization",
    "disable-warnings w", "restrict", "resource-usage res-usage", "no-exceptions noeh", "m64", "Wreorder",
    "Wno-deprecated-declarations", "Wno-deprecated-gpu-targets", "Wconversion", "Wdefault-stream-launch",
    "Wmissing-launch-bounds", "Wext-lambda-captures-this", "no-compress", "display-error-number err-no",
    "no-display-error-number no-err-no", "keep-device-functions", "source-in-ptx src-in-ptx",
    "generate-line-info lineinfo", "device-debug G", "debug g", "extensible-whole-program ewp",
    "allow-unsupported-compiler", "no-host-device-initializer-list nohdinitlist",
    "no-host-device-move-forward nohdmoveforward", "no-align-double", "forward-unknown-to-host-compiler",
)  # fmt: skip
_VALUES = (
    "gpu-architecture arch", "gpu-code code", "generate-code gencode", "std", "optimize O", "define-macro D",
    "undefine-macro U", "compiler-options Xcompiler", "ptxas-options Xptxas", "Xfatbin", "Xcudafe", "machine m",
    "diag-suppress", "diag-error", "diag-warn", "maxrregcount", "ftz", "prec-div", "prec-sqrt", "fmad",
    "default-stream", "split-compile", "x", "compress-mode", "Werror", "relocatable-device-code rdc",
    "Ofast-compile Ofc", "fmax-errors", "static-global-template-stub", "device-entity-has-hidden-visibility",
    "jump-table-density jtd", "stdlib", "brief-diagnostics brief-diag", "ftemplate-depth", "ftemplate-backtrace-limit",
    "device-stack-protector", "frandom-seed",
)  # fmt: skip
_PHASES = {"cubin": ".cubin", "ptx": ".ptx", "compile c": ".o", "device-c dc": ".o"}
TARGETS = ("gpu-architecture", "gpu-code", "generate-code")
_PATHS = ("include-path I", "system-include isystem")
_PLACES = ("output-file o", "dependency-output MF", "dependency-target-name MT", "compiler-bindir ccbin", "threads t")
_GLUED = ("-I", "-D", "-U")  # no other option begins so; -O is followed by a digit

_DEBUG = ("generate-line-info", "device-debug", "debug", "source-in-ptx")
"""Options that put absolute paths into the output. With one of them, the key contains the command's absolute paths."""
_PASSED = (
    "keep", "keep-dir", "save-temps", "preprocess", "E", "generate-dependencies", "M", "MM", "dryrun", "run", "link",
    "dlink", "time", "lib", "options-file", "optf", "version", "V", "help", "h",
)  # fmt: skip
"""Options that are not understood but have their own count in ``stats``; all others count as "unknown option"."""
_STOPPING = (
    "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "GCC_COMPARE_DEBUG", "INCLUDES", "SYSTEM_INCLUDES", "PTXAS_FLAGS",
    "CUDAFE_FLAGS", "CICC_PATH", "NVVMIR_LIBRARY_DIR", "COMPILER_PATH", "GCC_EXEC_PREFIX",
)  # fmt: skip
_ROOTS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_READ = ("NVCC_", "NVVM", "CICC", "CUDAFE", "PTXAS", "FATBIN", "GCC_")
_ELSEWHERE = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")  # options, or by content

_HOST = {
    "-fPIC", "-fpic", "-fPIE", "-fpie", "-fconcepts", "-fpermissive", "-fvisibility=hidden",
    "-fvisibility-inlines-hidden", "-fno-strict-aliasing", "-fno-gnu-unique", "-fopenmp", "-fexceptions",
    "-fno-exceptions", "-frtti", "-fno-rtti", "-ffast-math", "-fno-math-errno", "-fstack-protector-strong",
    "-ffunction-sections", "-fdata-sections", "-pthread", "-fwrapv", "-fno-omit-frame-pointer",
    "-fdiagnostics-color=always", "-pipe", "-w", "-m64", "-pedantic",
}  # fmt: skip
_HOST_STARTS = ("-O", "-std=", "-D", "-U", "-W")
_SUB_OPTIONS = {
    "ptxas-options": ("-O", "-v", "--verbose", "-w", "-warn-", "--warn-", "-dlcm", "--def-load-cache", "-dscm",
                      "--register-usage-level", "-maxrregcount", "--maxrregcount", "--allow-expensive-optimizations",
                      "--opt-level", "-fmad", "--fmad", "-suppress-", "--suppress-", "--disable-optimizer-constants"),
    "Xfatbin": ("-compress", "--compress"),
    "Xcudafe": ("--diag_", "--display_error_number", "--promote_warnings"),
}  # fmt: skip


def _table() -> dict[str, tuple[str, bool]]:
    """For each way to write an option: the option's name, and whether it has a value."""
    found = {}
    for names, valued in ((_FLAGS, False), (tuple(_PHASES), False), (_VALUES + _PATHS + _PLACES, True)):
        for name in names:
            long, _, short = name.partition(" ")
            for written in (f"--{long}", f"-{short or long}"):
                found[written] = (long, valued)
    found["--generate-dependencies-with-compile"] = found["-MD"] = ("MD", False)
    return found


class Command:
    """A command that is understood.

    Attributes:
        compiler: the path of nvcc, as it was given.
        options: the options that decide the output, in order, without paths: pairs of name and value.
        variables: the environment variables that nvcc and the host's compiler read.
        roots: directories where includes are looked for, as they were given, each once.
        source, output: paths, as they were given.
        dependencies: the dependency file to write; ``None`` for none. ``target`` is the target named in that file.
        host: the host's compiler, or its directory; empty where none was named.
        has_paths: whether absolute paths are in the output.
    """

    def __init__(self, compiler: str, environment: Mapping[str, str]) -> None:
        self.compiler, self.environment = compiler, environment
        self.options: list[tuple[str, str]] = []
        self.variables: dict[str, str] = {}
        self.roots: list[str] = []
        self.source = self.output = self.phase = self.host = self.target = ""
        self.dependencies: str | None = None
        self.has_paths = False

    @property
    def ending(self) -> str:
        """The ending of the output's name, such as ``.cubin``."""
        return ending_of(self.options)


def ending_of(options: Iterable[Sequence[str]]) -> str:
    """The ending of a command's output, such as ``.cubin``; raises ``LookupError`` if no option names a phase."""
    names = [option[0] for option in options]
    endings = [ending for phase, ending in _PHASES.items() if phase.partition(" ")[0] in names]
    return endings[0]


def understood(compiler: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Command:
    """Reads the arguments of nvcc into a command; raises ``PassThrough`` if nvcc must run it uncached.

    Reads no file.
    """
    made = Command(compiler, environment)
    for name in _STOPPING:
        if environment.get(name):
            raise PassThrough(f"variable {name}")
    given = [*_flags(environment, "NVCC_PREPEND_FLAGS"), *arguments, *_flags(environment, "NVCC_APPEND_FLAGS")]
    values: dict[str, str] = {}
    has_md = _read_options(made, given, values)
    if not made.phase:
        raise PassThrough("link, or no phase named")
    if not made.source:
        raise PassThrough("no source")
    made.output = values.get("output-file", "")
    if made.output in ("", "-") or made.output.startswith("/dev/"):
        raise PassThrough("output is not a named file")
    if ("dependency-output" in values or "dependency-target-name" in values) and not has_md:
        raise PassThrough("dependency options without -MD")
    if has_md:
        made.dependencies = values.get("dependency-output")
        if made.dependencies in (None, "", "-") or str(made.dependencies).startswith("/dev/"):
            raise PassThrough("dependency file is not named")
        made.target = values.get("dependency-target-name", made.output)
    made.host = values.get("compiler-bindir") or environment.get("NVCC_CCBIN", "")
    _read_variables(made)
    return made


def _flags(environment: Mapping[str, str], name: str) -> list[str]:
    text = environment.get(name, "")
    if {'"', "'", "\\"} & set(text):
        raise PassThrough(f"quotes in {name}")
    return text.split()


def _read_options(made: Command, given: list[str], values: dict[str, str]) -> bool:
    """Reads all options; returns whether a dependency file is requested.

    Values that name places, such as the output, go to ``values``; all else goes to ``made``.
    """
    has_md, at = False, 0
    while at < len(given):
        word = given[at]
        at += 1
        name, value = _split(word)
        if name is None:
            if made.source or not word.endswith(".cu"):
                raise PassThrough("several sources" if made.source else "source is no .cu file")
            made.source = word
            continue
        known, is_valued = _TABLE[name]
        if is_valued and value is None:
            if at == len(given):
                raise PassThrough("option without its value")
            value = given[at]
            at += 1
        elif not is_valued and value is not None:
            raise PassThrough(f"option {name[:40]}")
        has_md |= known == "MD"
        _take(made, known, value or "", values)
    return has_md


def _split(word: str) -> tuple[str | None, str | None]:
    """The name of an option and the value written in the same word; the name is ``None`` for any other word."""
    if word.startswith("@"):
        raise PassThrough("options in a file")
    if not word.startswith("-"):
        return None, None
    if word == "-":
        raise PassThrough("source on standard input")
    if word in _TABLE:
        return word, None
    name, equals, value = word.partition("=")
    if equals and name in _TABLE:
        if name in _GLUED:
            raise PassThrough(f"option {name}=")
        return name, value
    if word[:2] in _GLUED or (word[:2] == "-O" and word[2:].isdigit()):
        return word[:2], word[2:]
    bare = name.lstrip("-")
    raise PassThrough(f"option -{bare}" if bare in _PASSED else "unknown option")


def _take(made: Command, name: str, value: str, values: dict[str, str]) -> None:
    """Adds an option to the command."""
    if name in _PHASE_NAMES:
        if made.phase:
            raise PassThrough("two phases")
        made.phase = name
        made.options.append((name, ""))
    elif name in _PATH_NAMES:
        if "," in value or not value:
            raise PassThrough("comma in an include path")
        made.options.append((name, _number(made, value)))
    elif name in _PLACE_NAMES:
        if name in values and name != "threads":
            raise PassThrough(f"option --{name} twice")
        values[name] = value
    elif name != "MD":
        _check_value(name, value)
        host_debug = name == "compiler-options" and any(one.startswith("-g") for one in value.split(","))
        # A macro may name a header's path, which then does not move with the roots.
        made.has_paths |= name in _DEBUG or host_debug or (name == "define-macro" and "/" in value)
        made.options.append((name, value))


def _number(made: Command, root: str) -> str:
    if root not in made.roots:
        made.roots.append(root)
    return str(made.roots.index(root))


def _check_value(name: str, value: str) -> None:
    """Checks the value of an option; raises ``PassThrough`` if it is not understood."""
    if name in TARGETS:
        if "native" in value or "all" in value:
            raise PassThrough("target of this machine")
    elif name == "x":
        if value != "cu":
            raise PassThrough("language is not CUDA")
    elif name == "compiler-options":
        for one in value.split(","):
            is_known = one in _HOST or (one.startswith(_HOST_STARTS) and one not in ("-Wp", "-Wa", "-Wl", "-D", "-U"))
            if not (is_known or one in ("-g", "-g1", "-g2", "-g3")) or {'"', "'", "\\", " "} & set(one):
                raise PassThrough("unknown option of the host's compiler")
    elif name in _SUB_OPTIONS:
        for one in value.split(","):
            if not one.startswith(_SUB_OPTIONS[name]) or {"/", "@", " "} & set(one):
                raise PassThrough(f"unknown option in --{name}")


def _read_variables(made: Command) -> None:
    for name in _ROOTS:
        if text := made.environment.get(name):
            made.variables[name] = ":".join(_number(made, root or ".") for root in text.split(os.pathsep))
    for name, value in made.environment.items():
        if name.startswith(_READ) and name not in _ELSEWHERE and value:
            made.variables[name] = value


_TABLE = _table()
_PHASE_NAMES, _PATH_NAMES, _PLACE_NAMES = (
    frozenset(name.partition(" ")[0] for name in names) for names in (_PHASES, _PATHS, _PLACES)
)
