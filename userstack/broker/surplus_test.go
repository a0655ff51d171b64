// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// TestReceiveSurplus: descriptors of a message that are more than it may have are
// closed at once, whatever their SO_LINGER says.
func TestReceiveSurplus(t *testing.T) {
	testkind.System(t)
	a, b := sessionPair(t)
	tr := newTransport(b)
	rc, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Control(func(fd uintptr) { socktest.SendLingering(t, int(fd), 9) }); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, _, err := tr.receive(); err == nil {
			t.Error("a message with too many descriptors was received")
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("waits for the peers of the sockets")
	}
}

// TestDescriptorsAfterEnd: a descriptor that is not a socket ends the session. Descriptors
// that the launcher sent after it are closed, too.
func TestDescriptorsAfterEnd(t *testing.T) {
	testkind.System(t)
	before := socktest.OpenFiles(t)
	launcher, service := sessionPair(t)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	send := func(m Message, fds ...int) {
		t.Helper()
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		if _, _, err := launcher.WriteMsgUnix(mustEncode(t, m), oob, nil); err != nil {
			t.Fatal(err)
		}
	}
	send(Message{Type: TypeHello, Size: Version})
	send(Message{Type: TypeListen, Seq: 1}, int(file.Fd()))
	for range 3 {
		end := end(unix.SOCK_STREAM)
		send(Message{Type: TypeAttach, Conn: 1}, end)
		if err := unix.Close(end); err != nil {
			t.Fatal(err)
		}
	}
	_ = file.Close()
	if err := (&Server{Handler: &handler{}}).ServeConn(t.Context(), service); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("the session ended with %v", err)
	}
	_ = launcher.Close()
	for end := time.Now().Add(30 * time.Second); socktest.OpenFiles(t) > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are open, %d were", socktest.OpenFiles(t), before)
		}
	}
}

// sessionPair is a session's socket.
func sessionPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "session")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
