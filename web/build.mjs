// Builds src/gemlet/monitor/web/page.html: the page, its style and its script in one file. Run by `make page`.
// With --check it compares instead, and fails where the committed page is another.
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const room = "../src/gemlet/monitor/web/";

async function bundle(entry) {
  const made = await build({
    entryPoints: [entry], bundle: true, minify: true, write: false, format: "iife", target: "es2020", charset: "utf8",
    legalComments: "inline",
  });
  return made.outputFiles[0].text.trim();
}

const script = (await bundle("src/main.js")).replaceAll("</script", "<\\/script");
const style = await bundle("src/style.css");
const page = readFileSync("src/index.html", "utf8")
  .replace("/* style */", () => style)
  .replace("/* script */", () => script);
if (process.argv.includes("--check")) {
  if (readFileSync(room + "page.html", "utf8") !== page) {
    console.error("page.html is not what web/src builds: run `make page`");
    process.exit(1);
  }
} else {
  writeFileSync(room + "page.html", page);
  copyFileSync("node_modules/uplot/LICENSE", room + "LICENSE.uPlot");
  console.log(`page.html: ${Math.round(page.length / 1000)} kB`);
}
