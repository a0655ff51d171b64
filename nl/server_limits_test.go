// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/quota"
)

const nobody = 65534

// TestRefusalSaysWhy: a connection beyond a limit gets the reason as the answer to its
// request. Connections of root are served. After another connection has ended, new ones
// are served.
func TestRefusalSaysWhy(t *testing.T) {
	testkind.System(t)
	for name, test := range map[string]struct {
		cfg  nl.ServerConfig
		want string
	}{
		"connections": {nl.ServerConfig{MaxConnsPerUser: 2}, "user 65534 has 2 of at most 2 control connections"},
		"descriptors": {nl.ServerConfig{Quota: quota.New(quota.Limits{Total: 10000, User: 2})}, "user 65534 has 2 of at most 2 descriptors"},
	} {
		t.Run(name, func(t *testing.T) {
			address := serve(t, nltest.NewFake(nltest.SampleState()), test.cfg)
			var held []*nl.Client
			asUser(t, nobody, func() {
				for range 2 {
					c, err := nl.DialUnix(t.Context(), address)
					if err != nil {
						t.Error(err)
						return
					}
					held = append(held, c)
				}
				if c, err := nl.DialUnix(t.Context(), address); !errors.Is(err, syscall.EUSERS) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("a third connection: %v, %v", c, err)
				}
			})
			if len(held) < 2 {
				return
			}
			defer held[1].Close()
			dial(t, address)
			dial(t, address)
			if err := held[0].Close(); err != nil {
				t.Fatal(err)
			}
			testkind.Eventually(t, "after one ended", func() (any, bool) {
				var err error
				asUser(t, nobody, func() {
					var c *nl.Client
					if c, err = nl.DialUnix(t.Context(), address); err == nil {
						c.Close()
					}
				})
				return err, err == nil
			})
		})
	}
}

// tables counts the tables that the server makes or sends now.
type tables struct {
	nl.Control
	made atomic.Int32
}

func (c *tables) Connections(context.Context) ([]nl.Connection, error) {
	c.made.Add(1)
	return make([]nl.Connection, 20000), nil
}

// connections returns a sock_diag request for all connections.
func connections() []byte {
	b := binary.NativeEndian.AppendUint32(nil, 16+56)
	b = binary.NativeEndian.AppendUint16(b, 20)    // SOCK_DIAG_BY_FAMILY
	b = binary.NativeEndian.AppendUint16(b, 0x301) // request, dump
	b = append(b, make([]byte, 8+56)...)
	b[16] = 43 // AF_SMC
	return b
}

// TestSlowReaders: a user who asks for tables and does not read them gets only a few, and
// is disconnected after a limited time, even if a little is read now and then.
func TestSlowReaders(t *testing.T) {
	testkind.System(t)
	ctl := &tables{Control: nltest.NewFake(nltest.SampleState())}
	const limit = time.Second
	address := serve(t, ctl, nl.ServerConfig{AnswerTimeout: limit})
	var conns []*net.UnixConn
	begin := time.Now()
	asUser(t, nobody, func() {
		for range 8 {
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: address, Net: "unixpacket"})
			if err != nil {
				t.Error(err)
				return
			}
			conns = append(conns, c)
			if _, err := c.Write(connections()); err != nil {
				t.Error(err)
			}
		}
	})
	for _, c := range conns {
		defer c.Close()
	}
	testkind.Eventually(t, "tables", func() (any, bool) { return ctl.made.Load(), ctl.made.Load() >= 4 })
	// Root is served at the same time.
	if _, err := dial(t, address).LinkGroups(t.Context()); err != nil {
		t.Error(err)
	}
	if n := ctl.made.Load(); n > 4 && time.Since(begin) < limit {
		t.Errorf("%d tables at once for one user", n)
	}
	// Reading a little does not keep the connection open.
	buf := make([]byte, 64<<10)
	ended := 0
	for end := time.Now().Add(testkind.Patience); ended < len(conns) && time.Now().Before(end); {
		// Real time: they read only now and then.
		time.Sleep(50 * time.Millisecond)
		ended = 0
		for _, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(buf)
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				ended++
			}
		}
	}
	if ended < len(conns) {
		t.Errorf("%d of %d slow readers were cut off", ended, len(conns))
	}
}
