#!/bin/sh
# Prints the path of a Chromium for tests: the system's own, or Debian's packages unpacked where they need no root.
# Debian's browser gets its security updates, so there is no pinned version: any that Playwright can drive serves.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD/.servers/chromium
wrapper=$PWD/.servers/bin/chromium

for found in "${METASYNC_CHROMIUM:-}" "$(command -v chromium || true)" "$(command -v chromium-browser || true)" \
    "$(command -v google-chrome || true)"; do
    if [ -n "$found" ] && [ -x "$found" ]; then
        echo "$found"
        exit 0
    fi
done
browser=$root/unpacked/usr/lib/chromium/chromium
if [ ! -x "$browser" ]; then
    if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
        echo "There is no Chromium on the PATH, and no apt-get to fetch it with." >&2
        echo "Install it (package chromium), or set METASYNC_CHROMIUM to its program." >&2
        exit 1
    fi
    echo "unpacking Chromium from the system's packages into .servers/chromium (once; needs no root)" >&2
    rm -rf "$root"
    mkdir -p "$root" "$(dirname "$wrapper")"
    # What it needs and this system lacks; a font, so that pictures look the same everywhere.
    packages=$(apt-get install --simulate --no-install-recommends chromium fonts-inter 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    # shellcheck disable=SC2086 # a list of names
    if [ -z "$packages" ] || ! (cd "$root" && apt-get download $packages >&2); then
        echo "Chromium could not be fetched: apt-get download needs package lists (apt-get update) and the network." >&2
        exit 1
    fi
    for package in "$root"/*.deb; do
        dpkg-deb -x "$package" "$root/unpacked"
        rm "$package"
    done
fi
# Anew each time: it names the folder it lies in, which may have been moved.
libraries=$(find "$root/unpacked/usr/lib" "$root/unpacked/lib" -name 'lib*.so*' -exec dirname {} + 2>/dev/null | sort -u | tr '\n' ':')
cat >"$root/fonts.conf" <<FONTS
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>$root/unpacked/usr/share/fonts</dir>
  <cachedir>$root/fonts</cachedir>
  <alias binding="strong"><family>sans</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="strong"><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="strong"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
</fontconfig>
FONTS
cat >"$wrapper.new" <<WRAPPER
#!/bin/sh
FONTCONFIG_FILE=$root/fonts.conf LD_LIBRARY_PATH=$libraries exec $browser "\$@"
WRAPPER
chmod +x "$wrapper.new"
mv "$wrapper.new" "$wrapper"
echo "$wrapper"
