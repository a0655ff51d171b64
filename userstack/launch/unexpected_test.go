// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// If a launcher passes the service a file whose close never returns, the service
// ends the session at once.
func TestUnexpectedDescriptor(t *testing.T) {
	testkind.System(t)
	d := newDeafFile(t, false)
	srv := &broker.Server{Handler: &fakeStack{t: t}}
	for _, m := range []broker.Message{
		{Type: broker.TypeListen, Seq: 1},
		{Type: broker.TypeAttach, Conn: 7},
		{Type: broker.TypeCancel, Conn: 7}, // a type that carries no descriptor
	} {
		ours, theirs := sessionPair(t)
		ended := make(chan error, 1)
		go func() { ended <- srv.ServeConn(t.Context(), ours) }()
		s := &script{t: t, c: theirs}
		s.send(broker.Message{Type: broker.TypeHello, Size: broker.Version, Text: "test"})
		s.recv(broker.TypeWelcome)
		fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := theirs.WriteMsgUnix(b, unix.UnixRights(fd), nil); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, unix.ENOTSOCK) {
				t.Errorf("%v: the session ended with %v", m.Type, err)
			}
		case <-time.After(patience):
			t.Fatalf("%v: the session does not end", m.Type)
		}
		_ = theirs.Close()
		t.Cleanup(func() { go unix.Close(fd) })
	}
	for end := time.Now().Add(patience); d.flushes.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the file is never closed")
		}
	}
}
