// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
)

// listenersVariable has the test print the listening sockets with which it was started.
const listenersVariable = "SMCR_TEST_LISTENERS"

// TestInheritedListeners starts a process with sockets of all kinds.
func TestInheritedListeners(t *testing.T) {
	testkind.System(t)
	if os.Getenv(listenersVariable) != "" {
		fmt.Println("\nsockets", inheritedListeners())
		return
	}
	file := func(c interface{ File() (*os.File, error) }) *os.File {
		f, err := c.File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	listen := func(mptcp bool, network, address string) *os.File {
		var c net.ListenConfig
		c.SetMultipathTCP(mptcp)
		l, err := c.Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return file(l.(interface{ File() (*os.File, error) }))
	}
	tcp := listen(false, "tcp4", "127.0.0.1:0")
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	bound, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unconnected := os.NewFile(uintptr(bound), "socket")
	defer unconnected.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), listenersVariable+"=1")
	cmd.Stdin = tcp // as of inetd
	cmd.ExtraFiles = []*os.File{
		listen(false, "unix", t.TempDir()+"/sock"), tcp, file(udp.(*net.UDPConn)), listen(false, "tcp6", "[::1]:0"), null, unconnected, listen(true, "tcp4", "127.0.0.1:0"),
	}
	out, err := cmd.Output()
	if want := "\nsockets [0 4 6 9]\n"; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%s, %v, want %s", out, err, want)
	}
}

// refusing is a stack that takes no listening sockets.
type refusing struct{ *nltest.Fake }

func (refusing) Listen(context.Context, nl.Peer, []int) error { return unix.EPROTONOSUPPORT }

// TestHandOver: a program without listening sockets asks for nothing, and one whose sockets are refused is told.
func TestHandOver(t *testing.T) {
	testkind.System(t)
	var said strings.Builder
	log := newLog(&said, slog.LevelWarn)
	handOver(t.Context(), refusing{}, log) // those of Go are close-on-exec
	if said.String() != "" {
		t.Errorf("%q", &said)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rc, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	if err := rc.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD, 0) }); err != nil || fd < 0 {
		t.Fatal(err, fd)
	}
	defer unix.Close(fd)
	fake := nltest.NewFake(nltest.SampleState())
	handOver(t.Context(), fake, log)
	if fake.Listening() != 1 || said.String() != "" {
		t.Errorf("%d sockets, %q", fake.Listening(), &said)
	}
	handOver(t.Context(), refusing{}, log)
	if want := "smcr: warning: the program was started with listening sockets, and their connections stay TCP: protocol not supported (sockets 1)\n"; said.String() != want {
		t.Errorf("%q, want %q", &said, want)
	}
}
