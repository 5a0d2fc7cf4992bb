#!/usr/bin/env bash
# Builds the drawing library of a report's page, src/bsweep/report/static/vega.min.js, from these releases of npm's.
# Vega's expressions are interpreted, so the page's security policy allows no `eval`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../src/bsweep/report/static"
into=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --no-audit --no-fund vega@6.4.0 vega-lite@6.4.3 vega-interpreter@2.3.2 esbuild@0.28.2 >&2
cat >entry.js <<'JS'
export { changeset, parse, View } from "vega";
export { compile } from "vega-lite";
export { expressionInterpreter } from "vega-interpreter";
JS
npx esbuild entry.js --bundle --minify --format=iife --global-name=vega --target=es2020 --legal-comments=none \
    --outfile="$into/vega.min.js" >&2
for package in vega vega-lite vega-interpreter; do
    echo "$package $(node -p "require('./node_modules/$package/package.json').version")"
    echo
    cat "node_modules/$package/LICENSE"
    echo
done >"$into/vega_licence.txt"
