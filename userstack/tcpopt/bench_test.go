// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"testing"

	"golang.org/x/sys/unix"
)

func BenchmarkAttach(b *testing.B) {
	newBed(b) // checks the privileges
	for b.Loop() {
		p, err := Attach(Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnect opens, accepts and closes a connection over loopback: without the
// program, with it but without marks, and with marks and a call of Peer on both ends.
func BenchmarkConnect(b *testing.B) {
	for _, bench := range []struct {
		name             string
		attached, marked bool
	}{{"absent", false, false}, {"unmarked", true, false}, {"marked", true, true}} {
		b.Run(bench.name, func(b *testing.B) {
			bed := newBed(b)
			if !bench.attached {
				bed.must(bed.prog.Close())
			}
			l := bed.bind(bed.B, unix.AF_INET, "127.0.0.1", 4001)
			if bench.marked {
				bed.must(bed.prog.MarkListen(l))
			}
			bed.must(unix.Listen(l, 64))
			to := &unix.SockaddrInet4{Port: 4001, Addr: [4]byte{127, 0, 0, 1}}
			bed.must(bed.B.Do(func() error {
				b.ReportAllocs()
				for b.Loop() {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					// A reset avoids TIME_WAIT, which would use up the ports.
					bed.must(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
					if bench.marked {
						bed.must(bed.prog.MarkConnect(fd))
					}
					bed.must(unix.Connect(fd, to))
					server, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
					bed.must(err)
					if bench.marked {
						for _, fd := range []int{fd, server} {
							if s, err := bed.prog.Peer(fd); s != PeerSMC || err != nil {
								b.Fatal(s, err)
							}
						}
					}
					unix.Close(fd)
					unix.Close(server)
				}
				return nil
			}))
		})
	}
}

func BenchmarkMarkConnect(b *testing.B) {
	bed := newBed(b)
	fd := bed.socket(bed.A, unix.AF_INET)
	b.ReportAllocs()
	for b.Loop() {
		bed.must(bed.prog.MarkConnect(fd))
	}
}

// BenchmarkMarkListening marks a socket that already listens.
func BenchmarkMarkListening(b *testing.B) {
	bed := newBed(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		l := bed.listener(unix.AF_INET, "127.0.0.1", 4001, false)
		b.StartTimer()
		bed.must(bed.prog.MarkListen(l))
		b.StopTimer()
		bed.close(l)
		b.StartTimer()
	}
}

func BenchmarkPeer(b *testing.B) {
	bed := newBed(b)
	c := bed.dial(bed.listener(unix.AF_INET, "0.0.0.0", 4001, true), true)
	b.ReportAllocs()
	for b.Loop() {
		if s, err := bed.prog.Peer(c.server); s != PeerSMC || err != nil {
			b.Fatal(s, err)
		}
	}
}
