// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/internal/rights"
)

// TestTCPKeepAlive: the keepalives of the TCP connection below flow as its program
// asks for, and are answered, while its data goes over SMC-R (RFC 7609, section
// 4.5.3).
func TestTCPKeepAlive(t *testing.T) {
	c := newCarried(t, os.Geteuid())
	// sinceACK is how long ago the last acknowledgment came: tcpi_last_ack_recv,
	// in milliseconds.
	sinceACK := func() time.Duration {
		t.Helper()
		v, err := c.cc.GetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_INFO, 104)
		if err != nil || len(v) < 60 {
			t.Fatalf("TCP_INFO: %d bytes, %v", len(v), err)
		}
		return time.Duration(binary.NativeEndian.Uint32(v[56:])) * time.Millisecond
	}
	testkind.Eventually(t, "acknowledgments without keepalives", func() (any, bool) {
		d := sinceACK()
		return d, d > 2*time.Second // twice as long as the keepalives below leave
	})
	one := []byte{1, 0, 0, 0}
	for _, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}} {
		if err := c.cc.SetOption(t.Context(), rights.All, o[0], o[1], one); err != nil {
			t.Fatal(err)
		}
	}
	came, last := 0, sinceACK()
	testkind.Eventually(t, "no acknowledgments of keepalives", func() (any, bool) {
		d := sinceACK()
		if d < last {
			came++
		}
		last = d
		return came, came == 2
	})
	c.cprog.write("still there")
	c.sprog.read("still there")
	c.cprog.close()
	c.sprog.close()
	c.over(t, false)
}

// TestMinKeepAlive: the TCP connection below has no more keepalives than the administrator
// permits, whatever its program sets, before and after it connects. The program reads what
// it has set, and the link is tested as often as the program wants (RFC 7609, section 4.5.3).
func TestMinKeepAlive(t *testing.T) {
	c := newServicesOf(t, os.Geteuid(), func(cfg *Config) { cfg.MinKeepAlive = 19500 * time.Millisecond })
	var tcp int // a descriptor of the TCP socket
	c.connect(t, func(fd int) {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 3); err != nil {
			t.Fatal(err)
		}
		var err error
		if tcp, err = unix.Dup(fd); err != nil {
			t.Fatal(err)
		}
	}, attachEnd)
	t.Cleanup(func() { _ = unix.Close(tcp) })
	for _, tt := range []struct {
		name, set int // 0: not set
		read, tcp uint32
	}{
		{unix.TCP_KEEPIDLE, 0, 3, 20}, // set before
		{unix.TCP_KEEPINTVL, 0, 75, 75},
		{unix.TCP_KEEPINTVL, 1, 1, 20},
		{unix.TCP_KEEPINTVL, 20, 20, 20},
		{unix.TCP_KEEPINTVL, 30, 30, 30},
		{unix.TCP_KEEPIDLE, 7, 7, 20},
		{unix.TCP_KEEPCNT, 4, 4, 4},
	} {
		if tt.set > 0 {
			v := binary.NativeEndian.AppendUint32(nil, uint32(tt.set))
			if err := c.cc.SetOption(t.Context(), rights.All, unix.IPPROTO_TCP, tt.name, v); err != nil {
				t.Fatal(err)
			}
		}
		v, err := c.cc.GetOption(t.Context(), rights.All, unix.IPPROTO_TCP, tt.name, 4)
		if err != nil || len(v) != 4 || binary.NativeEndian.Uint32(v) != tt.read {
			t.Errorf("option %d after %d was set: read as %v, %v, want %d", tt.name, tt.set, v, err, tt.read)
		}
		if v, err := unix.GetsockoptInt(tcp, unix.IPPROTO_TCP, tt.name); err != nil || uint32(v) != tt.tcp {
			t.Errorf("option %d after %d was set: the TCP socket has %d, %v, want %d", tt.name, tt.set, v, err, tt.tcp)
		}
	}
	if v, err := c.cc.GetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1); err != nil || len(v) != 1 || v[0] != 7 {
		t.Errorf("one byte of TCP_KEEPIDLE: %v, %v", v, err)
	}
	c.cprog.close()
	c.sprog.close()
	c.over(t, false)
}
