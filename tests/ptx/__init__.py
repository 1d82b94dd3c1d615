"""A machine that executes PTX on the CPU, and the kernels that it executes.

How one kernel is tested::

    case = Case(FAMILIES["tensor_core"], GemmProblem(24, 72, 104, arch="sm_90"), KernelConfig(16, 64, 16, 1, 2, 2))
    assert not what_is_wrong(case)

``what_is_wrong`` (``problems.py``) has NVRTC compile the case, launches the PTX twice through the project's own launch
code, with copies that land as late and as early as allowed, and compares each element of C with the exact result,
rounded once. Operands make every sum exact, so C must be equal. In the launch code ``Kernel`` (``machine.py``) replaces
the loaded function.

The machine:

- ``parse.py``: the text as basic blocks of instructions.
- ``translate.py``, ``translate_hopper.py`` (sm_90a), ``tables.py``: each basic block as a Python function, in which
  an instruction is a line of NumPy for all threads, or a call of what follows.
- ``machine.py``: runs the blocks: which threads go on, where they meet; ``hopper.py``: what sm_90a adds.
- ``arithmetic.py``, ``tensor.py`` (mma, ldmatrix), ``tiles.py`` (wgmma): what instructions compute.
- ``shared.py``, ``memory.py``: memory, each access checked; ``order.py``, ``barriers.py``, ``clusters.py``: who may
  access what, and when; ``maps.py``, ``stores.py``: tensor maps, and boxes that the copy engine stores.
- ``banks.py``: counts turns of banks and sectors.

It raises a ``Fault`` (``faults.py``) for what it refuses, with the line of the PTX, and a ``PtxError`` for what it does
not know.

What it executes: ``problems.py``, ``grouped.py``, ``hopper_problems.py`` make cases, and ``mistakes.py`` spoils them.
``test_machine.py``, ``test_hopper.py``, ``test_clusters.py``, ``test_stores.py`` and ``test_maps.py`` test the
machine on kernels of a few lines; ``test_kernels.py`` runs our kernels, and ``test_mistakes.py`` those with the
mistakes of ``tensor_core_mistakes.py``, ``hopper_mistakes.py`` and ``grouped.py``.

To add

- an instruction: a method ``_name`` of ``Translator`` that returns lines of Python, or, if NumPy has a function for
  it, a row in ``tables.UFUNCS``. Take what it does from the PTX ISA, not from our kernels, refuse each form that you
  leave out (``self._unknown``), and add a row with a value computed by hand to ``test_machine.py``. Of sm_90a:
  ``translate_hopper.py``, a method of ``Hopper``, and tests of what it refuses in ``test_hopper.py``.
- a case: a shape, a config or an epilogue in the lists that ``_made`` (``problems.py``, ``grouped.py``,
  ``hopper_problems.py``) combines. ``make test`` runs a few of them each day, ``make soak`` all; on a failure, the seed
  that is printed takes the same.
- a mistake: a row in a table, see ``mistakes.py``. If its test fails because the machine sees nothing, it is no
  mistake, or the machine or the cases lack something.
"""
