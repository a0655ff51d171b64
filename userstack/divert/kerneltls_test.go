// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// Options of unix.SOL_TLS (linux/tls.h).
const tlsTX, tlsRX = 1, 2

// TestKernelTLS has programs whose kernel encrypts (TLS_TX) and decrypts (TLS_RX) their TCP sockets. Their stacks have records of
// TLS, as a peer has over TCP, also where they let go of the connection.
func TestKernelTLS(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	netnstest.Require(t)
	needKernelTLS(t)
	const size = 1 << 20
	t.Run("carried", func(t *testing.T) {
		ends := make(chan *net.TCPConn, 2)
		b := newBed(t, func(b *bed, f *Flow) { ends <- b.splitOff(f) })
		client, server := b.connect(b.listen(b.B.Addr()))
		both := [2]*net.TCPConn{<-ends, <-ends}
		if both[0] == nil || both[1] == nil {
			return
		}
		b.wantTaken(1, 1)
		encrypted(t, client, server)
		var seen [2]bytes.Buffer
		var all sync.WaitGroup
		for i, from := range both {
			to := both[1-i]
			all.Go(func() {
				_, err := io.Copy(struct{ io.Writer }{to}, io.TeeReader(from, &seen[i]))
				if err := errors.Join(err, to.CloseWrite()); err != nil {
					t.Errorf("stack: %v", err)
				}
			})
		}
		exchange(t, size, client, server)
		all.Wait()
		clear := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{2}).Read(clear) // what exchange sends
		for i := range seen {
			got := seen[i].Bytes()
			if len(got) <= size || !bytes.HasPrefix(got, []byte{23, 3, 3}) || bytes.Contains(got, clear[size/2:size/2+16]) {
				t.Errorf("the stack had %d bytes that begin with % x, want records of %d bytes", len(got), got[:min(5, len(got))], size)
			}
		}
	})
	t.Run("declined", func(t *testing.T) {
		b := newShiftBed(t)
		client, server := b.connect(b.listen(b.B.Addr()))
		b.wantTaken(1, 1)
		encrypted(t, client, server)
		b.exchanges(client, server)
		b.letGo(1)
		exchange(t, size, client, server)
	})
}

// needKernelTLS skips the test where the kernel has no TLS.
func needKernelTLS(t *testing.T) {
	t.Helper()
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
	if err := useTLS(c.(*net.TCPConn)); errors.Is(err, unix.ENOENT) {
		t.Skip("needs a kernel with TLS (CONFIG_TLS); TestBoundaryKernels has one")
	} else if err != nil {
		t.Fatal(err)
	}
}

// useTLS has the kernel handle TLS for a connection, whose keys are not known yet.
func useTLS(c *net.TCPConn) error {
	return control(c, func(fd int) error { return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls") })
}

func control(c *net.TCPConn, do func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	return errors.Join(raw.Control(func(fd uintptr) { failed = do(int(fd)) }), failed)
}

// encrypted gives the kernel of two programs the keys of both ways, as a handshake has left them.
func encrypted(t *testing.T, ends ...*net.TCPConn) {
	t.Helper()
	for i, c := range ends {
		err := useTLS(c)
		for _, way := range []struct{ option, from int }{{tlsTX, i}, {tlsRX, 1 - i}} {
			err = errors.Join(err, control(c, func(fd int) error {
				return unix.SetsockoptString(fd, unix.SOL_TLS, way.option, string(keys(byte(way.from))))
			}))
		}
		if err != nil {
			t.Fatalf("%v: %v", c.LocalAddr(), err)
		}
	}
}

// keys is struct tls12_crypto_info_aes_gcm_128 of linux/tls.h, with keys made of a number.
func keys(n byte) []byte {
	const (
		version12   = 0x0303
		aesGCM128   = 51
		keySaltSize = 8 + 16 + 4 // an explicit nonce, a key, a salt
	)
	b := binary.NativeEndian.AppendUint16(nil, version12)
	b = binary.NativeEndian.AppendUint16(b, aesGCM128)
	b = append(b, bytes.Repeat([]byte{n + 1}, keySaltSize)...)
	return append(b, make([]byte, 8)...) // the number of the next record
}
