// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// extras are the options by which who shares a unix socket has the kernel add to each message.
var extras = map[string][]int{
	"nothing":     nil,
	"credentials": {unix.SO_PASSCRED},
	"label":       {unix.SO_PASSSEC},
	"pidfd":       {unix.SO_PASSPIDFD},
	"all":         {unix.SO_PASSCRED, unix.SO_PASSSEC, unix.SO_PASSPIDFD},
}

// message returns a Msghdr that receives into b.
func message(b []byte) *unix.Msghdr {
	iov := &unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	msg := &unix.Msghdr{Iov: iov}
	msg.SetIovlen(1)
	return msg
}

// TestRecvExtras: whoever shares the socket can have the kernel add credentials, a label and a
// descriptor of the sender's process to each message. None of them takes the room of the
// descriptors that a message has, which the kernel would close within the call, and no descriptor
// stays open.
func TestRecvExtras(t *testing.T) {
	testkind.System(t)
	for name, options := range extras {
		t.Run(name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pair[0])
			defer unix.Close(pair[1])
			for _, o := range options {
				if err := unix.SetsockoptInt(pair[1], unix.SOL_SOCKET, o, 1); err == unix.ENOPROTOOPT {
					t.Skipf("this kernel has no option %d", o)
				} else if err != nil {
					t.Fatal(err)
				}
			}
			before := socktest.OpenFiles(t)
			msg := message(make([]byte, 10))
			for range 50 {
				if _, err := unix.Write(pair[0], []byte("x")); err != nil {
					t.Fatal(err)
				}
				if n, came, errno := Recvmsg(pair[1], msg); n != 1 || came != (options != nil) && name != "label" || errno != 0 {
					t.Fatalf("%d, %v, %v", n, came, errno)
				}
			}
			const most = 253 // SCM_MAX_FD
			fds := make([]int, most)
			for i := range fds {
				fds[i] = pair[0]
			}
			if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fds...), nil, 0); err != nil {
				t.Fatal(err)
			}
			if n, came, errno := Recvmsg(pair[1], msg); n != 1 || !came || errno != 0 {
				t.Errorf("%d, %v, %v", n, came, errno)
			}
			if msg.Flags&unix.MSG_CTRUNC != 0 {
				t.Error("the kernel has closed descriptors within the call")
			}
			wantFiles(t, before)
		})
	}
}

// TestDropNoAllocs: messages to which the kernel adds credentials cost no allocation and no
// goroutine, so who asks for them does not slow down the thread that receives for all. What is not
// well-formed does no harm.
func TestDropNoAllocs(t *testing.T) {
	b := unix.UnixCredentials(&unix.Ucred{Pid: 1})
	if allocs := testing.AllocsPerRun(200, func() { drop(b) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	for n := range len(b) {
		drop(b[:n])
		cut := append([]byte(nil), b...)
		cut[0] = byte(n)
		drop(cut)
	}
}
