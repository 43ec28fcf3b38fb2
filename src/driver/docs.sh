# shellcheck shell=bash disable=SC2154
# The site of ./annulus docs: MkDocs makes it of docs and README.md, Doxygen of the headers. Sourced by ./annulus, which sets `root` and `deps`.

build_docs() {
  [ $# -eq 0 ] || die "docs: unknown argument '$1' (./annulus help)"
  local from=$root/src/driver/docs modules=$deps/docs log=$deps/docs.log
  mkdir -p "$deps"
  install_packages doxygen python3 python3-pip
  command -v doxygen >/dev/null || die "docs: there is no doxygen in PATH, which makes the pages of the C++ API"
  if ! cmp -s "$from/requirements.txt" "$modules/requirements.txt"; then
    say "installing MkDocs into $modules"
    rm -rf "$modules"
    python3 -m pip install --quiet --disable-pip-version-check --target "$modules" -r "$from/requirements.txt" >"$log" 2>&1 ||
      { tail -n 20 "$log" >&2; die "pip could not install what src/driver/docs/requirements.txt lists (whole log: $log)"; }
    cp "$from/requirements.txt" "$modules/"
  fi
  python3 "$from/pictures.py" "$deps/pictures"
  diff -rq "$deps/pictures" "$root/docs/pictures" >&2 || die "docs: the pictures are not those of pictures.py: python3 src/driver/docs/pictures.py docs/pictures"
  say "building the site; a link that leads nowhere ends this"
  NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$modules python3 -m mkdocs build -f "$from/mkdocs.yml" >"$log" 2>&1 ||
    { grep -v '^INFO' "$log" >&2; die "the site was not made: the reason stands above"; }
  say "open $root/build/site/index.html; for its search: python3 -m http.server -d $root/build/site"
}
