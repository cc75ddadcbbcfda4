import { brotliCompressSync, constants } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

/** Compresses what is built once, so that the server never has to. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    generateBundle(_, bundle) {
      for (const [name, file] of Object.entries(bundle)) {
        if (!/\.(js|css|svg)$/.test(name)) continue;
        const source = file.type === "chunk" ? file.code : file.source;
        const packed = brotliCompressSync(source, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } });
        this.emitFile({ type: "asset", fileName: `${name}.br`, source: packed });
      }
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [compressed()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/ojster/dashboard/assets",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    reportCompressedSize: false,
    rolldownOptions: { output: { assetFileNames: "assets/[name]-[hash][extname]", chunkFileNames: "assets/[name]-[hash].js", entryFileNames: "assets/[name]-[hash].js" } },
  },
  server: { proxy: { "/ojs": "http://127.0.0.1:8080" } },
});
