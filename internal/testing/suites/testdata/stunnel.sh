#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Downloads of 5 MB through stunnel, which takes POLLHUP for the end of both directions:
# curl - stunnel as client - stunnel as server - a web server that closes after the answer.
# stunnel.sh server|client ADDRESS DIRECTORY. The client prints the Test Anything Protocol.
set -u
role=$1 addr=$2 dir=$3
cd "$dir" || exit 1
case $role in
server)
  head -c 5000000 /dev/urandom >big
  openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=suite 2>/dev/null
  python3 - "$addr" <<'P' &
import socket, sys, threading
data = open("big", "rb").read()
def serve(c):
    while b"\r\n\r\n" not in c.recv(65536): pass
    c.sendall(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n")
    c.sendall(data); c.close()
l = socket.create_server((sys.argv[1], 8080), backlog=64)
while True:
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
P
  printf 'foreground = yes\npid =\n[web]\naccept = %s:8443\nconnect = %s:8080\ncert = cert.pem\nkey = key.pem\n' "$addr" "$addr" >server.conf
  touch ready
  exec stunnel4 server.conf ;;
client)
  until [ -e ready ]; do sleep .1; done
  printf 'foreground = yes\npid =\n[web]\nclient = yes\naccept = 127.0.0.1:8081\nconnect = %s:8443\n' "$addr" >client.conf
  stunnel4 client.conf 2>stunnel.log &
  p=$!
  for _ in $(seq 100); do curl -s -o /dev/null --max-time 5 http://127.0.0.1:8081/ && break; sleep .2; done
  want=$(sha256sum <big)
  for i in $(seq 20); do
    if [ "$(curl -s --max-time 20 http://127.0.0.1:8081/ | sha256sum)" = "$want" ]; then echo "ok $i - download"; else echo "not ok $i - download"; fi
  done
  kill $p
  wait ;;
esac
