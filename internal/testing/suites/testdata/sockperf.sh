#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# sockperf, which calls sendto with an address on connected sockets.
# sockperf.sh server|client ADDRESS DIRECTORY. The client prints the Test Anything Protocol.
set -u
role=$1 addr=$2 dir=$3
cd "$dir" || exit 1
case $role in
server)
  touch ready
  exec sockperf server --tcp -i "$addr" -p 8080 ;;
client)
  until [ -e ready ]; do sleep .1; done
  sleep 1
  i=0
  for what in ping-pong under-load throughput; do
    i=$((i + 1))
    out=$(timeout 20 sockperf $what --tcp -i "$addr" -p 8080 -t 2 -m 64 2>&1)
    if [ $? = 0 ] && ! grep -qi 'error' <<<"$out"; then echo "ok $i - $what"; else echo "not ok $i - $what"; tail -5 <<<"$out" | sed 's/^/# /'; fi
  done ;;
esac
