// SPDX-License-Identifier: Apache-2.0
//
// exchange ADDRESS PORT: sends blocks on one connection and reads each back, until SIGINT. The
// server is blockEcho. It says "made" after the first block, and how many there were at its end.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 20000 };
static volatile sig_atomic_t over;

static void end(int sig) {
  (void)sig;
  over = 1;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

int main(int argc, char **argv) {
  static char out[4 + SIZE], in[SIZE];
  struct sockaddr_in to = {.sin_family = AF_INET};
  struct sigaction action = {.sa_handler = end, .sa_flags = SA_RESTART};
  if (argc != 3 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return 2;
  to.sin_port = htons(atoi(argv[2]));
  sigaction(SIGINT, &action, NULL);
  int s = socket(AF_INET, SOCK_STREAM, 0);
  if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof to) < 0) fail("connect");
  uint32_t size = htonl(SIZE);
  memcpy(out, &size, sizeof size);
  long n = 0;
  for (; !over; n++) {
    memset(out + 4, 'a' + n % 26, SIZE);
    for (size_t at = 0; at < sizeof out;) {
      ssize_t k = send(s, out + at, sizeof out - at, 0);
      if (k <= 0) fail("send");
      at += k;
    }
    for (size_t at = 0; at < SIZE;) {
      ssize_t k = recv(s, in + at, SIZE - at, 0);
      if (k <= 0) fail("recv");
      at += k;
    }
    if (memcmp(in, out + 4, SIZE) != 0) fail("wrong data");
    if (n == 0) {
      puts("made");
      fflush(stdout);
    }
    usleep(2000);
  }
  printf("exchanged %ld\n", n);
  return 0;
}
