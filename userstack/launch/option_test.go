// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestOptionVerdict: where the launcher answers for the kernel, it says what the
// kernel says.
func TestOptionVerdict(t *testing.T) {
	testkind.System(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][2]int{
		"SO_KEEPALIVE":  {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
		"TCP_NODELAY":   {unix.IPPROTO_TCP, unix.TCP_NODELAY},
		"TCP_KEEPIDLE":  {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
		"TCP_KEEPINTVL": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		"TCP_KEEPCNT":   {unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
	}
	for name, o := range names {
		for _, v := range []int32{-1 << 31, -1, 0, 1, 2, 126, 127, 128, 255, 32766, 32767, 32768, 1 << 30} {
			for _, size := range []int{0, 1, 3, 4, 5, 8} {
				b := binary.NativeEndian.AppendUint32(nil, uint32(v))
				b = append(b, 0xff, 0xff, 0xff, 0xff)[:size]
				t.Run(fmt.Sprintf("%s=%d in %d bytes", name, v, size), func(t *testing.T) {
					got, known := optionVerdict(o[0], o[1], b)
					if !known {
						t.Fatal("the launcher does not know")
					}
					var serr error
					if err := rc.Control(func(fd uintptr) { serr = setRaw(int(fd), o[0], o[1], b) }); err != nil {
						t.Fatal(err)
					}
					var want unix.Errno
					if serr != nil && !errors.As(serr, &want) {
						t.Fatal(serr)
					}
					if got != want {
						t.Errorf("the launcher says %q, the kernel %q", got, want)
					}
				})
			}
		}
	}
	for _, o := range [][2]int{{unix.SOL_SOCKET, unix.SO_MARK}, {unix.SOL_SOCKET, unix.SO_LINGER}, {unix.IPPROTO_TCP, unix.TCP_CONGESTION}, {unix.IPPROTO_IP, unix.IP_TRANSPARENT}} {
		if _, known := optionVerdict(o[0], o[1], make([]byte, 8)); known {
			t.Errorf("the launcher answers for level %d, option %d, which asks for more than the value", o[0], o[1])
		}
	}
}
