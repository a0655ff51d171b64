// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	const idle = 2500 * time.Millisecond
	time.Sleep(idle)
	if d := sinceACK(); d < idle-500*time.Millisecond {
		t.Errorf("without keepalives the last acknowledgment is %v old", d)
	}
	one := []byte{1, 0, 0, 0}
	for _, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}} {
		if err := c.cc.SetOption(t.Context(), rights.All, o[0], o[1], one); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(idle)
	if d := sinceACK(); d > 2*time.Second {
		t.Errorf("with a keepalive each second the last acknowledgment is %v old", d)
	}
	c.cprog.write("still there")
	c.sprog.read("still there")
	c.cprog.close()
	c.sprog.close()
	c.over(t, false)
}
