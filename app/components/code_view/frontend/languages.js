// Highlighting: C++ and Python by CodeMirror's own modes, the rest by the few rules that each language needs.
import { StreamLanguage } from "@codemirror/language";
import { cpp } from "@codemirror/legacy-modes/mode/clike";
import { python } from "@codemirror/legacy-modes/mode/python";

/** A language of rules: the first pattern that fits says what the text is. Patterns are anchored. */
const ruled = (name, rules) =>
  StreamLanguage.define({
    name,
    token(stream) {
      if (stream.eatSpace()) return null;
      for (const [pattern, token] of rules) if (stream.match(pattern)) return token;
      stream.next();
      return null;
    },
  });

const STRING = [/^"(?:[^"\\]|\\.)*"?/, "string"];
const NUMBER = [/^[-+]?(?:0x[0-9a-fA-F]+|0[fdFD][0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?)\b/, "number"];

const ptx = ruled("ptx", [
  [/^\/\/.*/, "comment"],
  STRING,
  [/^\$[\w$]+:?/, "labelName"],
  [/^%[a-z]+\d*(?:\.[xyzw])?/, "variableName"],
  [/^\.[a-z]\w*/, "meta"],
  NUMBER,
  [/^[a-z]\w*(?:\.[\w:]+)*/, "keyword"],
  [/^[A-Za-z_$][\w$]*/, null],
]);

const sass = ruled("sass", [
  [/^\/\*[^*]*\*\//, "comment"],
  [/^\/\/.*/, "comment"],
  STRING,
  [/^`?\(?\.L_?\w+\)?:?/, "labelName"],
  [/^@!?U?P(?:\d+|T)\b/, "atom"],
  [/^[-~|!]?(?:UR|R)(?:\d+|Z)\b(?:\.\w+)*/, "variableName"],
  [/^!?(?:UP|P)(?:\d+|T)\b/, "atom"],
  [/^SR_\w+(?:\.\w+)?/, "atom"],
  NUMBER,
  [/^[A-Z][A-Z0-9_]*(?:\.[\w&]+)*/, "keyword"],
  [/^\.\w+/, "meta"],
  [/^[A-Za-z_$][\w$.]*/, null],
]);

const mlir = ruled("mlir", [
  [/^\/\/.*/, "comment"],
  STRING,
  [/^%[\w$.-]+(?:[:#]\d+)?/, "variableName"],
  [/^@[\w$.]+/, "labelName"],
  [/^[#!][A-Za-z_][\w.]*/, "meta"],
  [/^[a-z_]\w*(?:\.[a-z_]\w*)+/, "keyword"],
  [/^(?:tensor|vector|memref|[su]?i\d+|b?f\d+|index)\b/, "typeName"],
  NUMBER,
  [/^[A-Za-z_]\w*/, null],
]);

const llvm = ruled("llvm", [
  [/^;.*/, "comment"],
  STRING,
  [/^%[\w$.-]+/, "variableName"],
  [/^@[\w$.]+/, "labelName"],
  [/^[!#][\w.]*/, "meta"],
  [/^(?:i\d+|b?float|half|double|ptr|void|metadata|label)\b/, "typeName"],
  [/^[\w.$]+:(?=\s|$)/, "labelName"],
  NUMBER,
  [/^[a-z]\w*/, "keyword"],
]);

export const LANGUAGES = {
  cuda: StreamLanguage.define(cpp),
  python: StreamLanguage.define(python),
  ptx,
  sass,
  mlir,
  llvm,
};
