// Builds ../built/code-DIGEST.js from this folder: npm ci && npm run build. The digest is of what it is built from, so
// that browsers never use an older file, and a test sees a file that was not built again.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const sources = readdirSync(".").filter((name) => /\.(js|mjs)$/.test(name) || name === "package-lock.json").sort();
const hash = createHash("sha256");
for (const name of sources) hash.update(`${name}\n`).update(readFileSync(name));
const digest = hash.digest("hex").slice(0, 16);

const result = await build({
  entryPoints: ["main.js"],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  metafile: true,
  write: false,
});

const packages = new Set();
for (const input of Object.keys(result.metafile.inputs)) {
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (found) packages.add(found[1]);
}
const licences = [...packages].sort().map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n`;
});

rmSync("../built", { recursive: true, force: true });
mkdirSync("../built");
writeFileSync(`../built/code-${digest}.js`, result.outputFiles[0].text);
writeFileSync("../built/LICENCES.txt", licences.join(`\n${"-".repeat(80)}\n\n`));
console.log(`code-${digest}.js: ${result.outputFiles[0].text.length} bytes of ${[...packages].sort().join(", ")}`);
