#!/usr/bin/env bash
# Chromium and its driver for the tests of reports, from the distribution. Never fails: without them those tests are skipped.
set -u

has() { command -v "$1" >/dev/null 2>&1; }
left_out() { echo "no browser for the tests of reports, which are skipped: $1"; exit 0; }

if has chromium && has chromedriver; then exit 0; fi
has apt-get || left_out "there is no apt-get; install chromium and chromedriver"
[ "$(id -u)" = 0 ] || left_out "sudo apt-get install chromium chromium-driver brings one"
echo "installing chromium and chromium-driver"
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --quiet --quiet --yes --no-install-recommends chromium chromium-driver)
# Lists of packages may be missing or old; a mirror that does not answer must not hold the tests for ever.
timeout 300 "${install[@]}" >/dev/null 2>&1 ||
  { timeout 300 apt-get update --quiet --quiet >/dev/null 2>&1 && timeout 600 "${install[@]}" >/dev/null 2>&1; } ||
  left_out "apt-get install chromium chromium-driver did not go well"
