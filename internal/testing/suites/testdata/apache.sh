#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ab against Apache, whose listening sockets have TCP_DEFER_ACCEPT.
# apache.sh server|client ADDRESS DIRECTORY. The client prints the Test Anything Protocol.
set -u
role=$1 addr=$2 dir=$3
cd "$dir" || exit 1
case $role in
server)
  mkdir -p htdocs
  head -c 100000 /dev/zero >htdocs/file
  cat >httpd.conf <<C
ServerRoot $dir
PidFile $dir/pid
Listen $addr:8080
User www-data
Group www-data
ServerName suite
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
DocumentRoot $dir/htdocs
ErrorLog $dir/error.log
C
  chmod 755 "$dir"
  touch ready
  exec apache2 -X -f "$dir/httpd.conf" ;;
client)
  until [ -e ready ]; do sleep .1; done
  for _ in $(seq 20); do curl -s -o /dev/null --noproxy "*" --max-time 1 "http://$addr:8080/file" && break; sleep .2; done
  i=0
  # Name, arguments, requests.
  while read -r name n args; do
    i=$((i + 1))
    # A connection that waits for TCP_DEFER_ACCEPT takes a second or more: ab ends it by -s.
    out=$(timeout 30 ab -q -s 5 -n "$n" $args "http://$addr:8080/file" 2>&1)
    if grep -q "^Complete requests: *$n\$" <<<"$out" && grep -q '^Failed requests: *0$' <<<"$out"; then echo "ok $i - $name"; else echo "not ok $i - $name"; sed 's/^/# /' <<<"$out"; fi
  done <<'L'
one-after-the-other 50 -c 1
ten-at-once 500 -c 10
kept-alive 500 -c 10 -k
L
  ;;
esac
