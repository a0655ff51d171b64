#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tests of a suite that are programs of their own, one after the other.
# each.sh liburing|node|nginx SOURCE SECONDS PATTERNS [TEST...]: those tests, or else those whose names
# match one of the patterns, each for so many seconds at most. It prints the Test Anything Protocol.
set -u
kind=$1 source=$2 seconds=$3 patterns=$4
shift 4
case $kind in
liburing) dir=$source/test end=.t ;;
node) dir=$source/test/parallel end=.js ;;
nginx) dir=$source end=.t ;;
esac
ulimit -l unlimited 2>/dev/null # where it may
if [ $# = 0 ]; then
  set -f # the patterns are for the folder of the tests
  for pattern in $patterns; do
    while read -r file; do set -- "$@" "${file%"$end"}"; done < <(cd "$dir" && find . -maxdepth 1 -name "$pattern$end" -printf '%f\n' | LC_ALL=C sort)
  done
  set +f
fi
i=0
for name in "$@"; do
  i=$((i + 1))
  case $kind in
  liburing) argv=("$dir/$name$end") ;;
  node)
    flags=$(sed -n 's,^// Flags: ,,p' "$dir/$name$end")
    argv=("$source/out/Release/node" $flags "$dir/$name$end")
    export NODE_TEST_DIR=$PWD
    ;;
  nginx)
    # Workers of another user could not read the folders of the tests.
    export TEST_NGINX_BINARY=/usr/sbin/nginx TEST_NGINX_MODULES=/usr/lib/nginx/modules TEST_NGINX_GLOBALS='user root;' LC_ALL=C
    argv=(perl "-I$source/lib" "$dir/$name$end")
    ;;
  esac
  [ "$kind" != nginx ] || cd "$dir" # for its files
  out=$(timeout -k 5 "$seconds" "${argv[@]}" </dev/null 2>&1)
  status=$?
  if [ $status = 77 ] || { [ $status = 0 ] && grep -q '^1\.\.0 # S[Kk][Ii][Pp]' <<<"$out"; }; then
    echo "ok $i - $name # SKIP"
  elif [ $status = 0 ]; then
    echo "ok $i - $name"
  else
    echo "not ok $i - $name"
    echo "# ended with $status"
    tail -n 40 <<<"$out" | sed 's/^/# /'
  fi
done
