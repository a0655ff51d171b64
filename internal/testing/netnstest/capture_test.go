// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

func TestCaptureIsComplete(t *testing.T) {
	testkind.System(t)
	const size = 16 << 20
	p := New(t, Options{})
	for _, snap := range []int{0, 128} {
		t.Run(fmt.Sprintf("snaplen %d", snap), func(t *testing.T) {
			c := p.A.StartCapture(t, CaptureOptions{SnapLen: snap})
			var ln net.Listener
			if err := p.A.Do(func() (err error) { ln, err = net.Listen("tcp", p.A.Addr()+":0"); return err }); err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			received := make(chan int64, 1)
			go func() {
				conn, err := ln.Accept()
				if err != nil {
					received <- -1
					return
				}
				defer conn.Close()
				n, _ := io.Copy(io.Discard, conn)
				received <- n
			}()
			err := p.B.Do(func() error {
				conn, err := net.DialTimeout("tcp", ln.Addr().String(), testkind.Patience)
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.Write(make([]byte, size))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := <-received; n != size {
				t.Fatalf("received %d bytes", n)
			}
			sendRoCE(t, p.B, p.A, 1000)
			dropped, err := c.Stop()
			if err != nil || dropped != 0 {
				t.Fatalf("Stop: %d dropped, %v", dropped, err)
			}
			tr, err := c.Count()
			if err != nil {
				t.Fatal(err)
			}
			if tr.TCP.Payload < size || tr.TCP.Payload > size+size/4 {
				t.Errorf("TCP payload %d, want %d and not many repetitions", tr.TCP.Payload, size)
			}
			if len(tr.Flows) != 1 || tr.MaxFlowPayload() != tr.TCP.Payload || tr.SYNs != 1 || tr.SYNACKs != 1 || tr.SMCSYNs != 0 {
				t.Errorf("traffic %+v", tr)
			}
			if tr.RoCEv1.Payload != 1000 || tr.RoCEv1.Packets != 1 || tr.RoCEShare() <= 0 || tr.RoCEShare() > 0.01 {
				t.Errorf("RoCE %+v, share %v", tr.RoCEv1, tr.RoCEShare())
			}
		})
	}
}

// sendRoCE sends one frame of ethertype 0x8915 with n bytes after the header.
func sendRoCE(t *testing.T, from, to *Host, n int) {
	t.Helper()
	sendRoCEFrames(t, from, to, n, 1)
}

// sendRoCEFrames sends count such frames.
func sendRoCEFrames(t *testing.T, from, to *Host, n, count int) {
	t.Helper()
	err := from.Do(func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := append(append(append([]byte{}, to.Links[0].MAC...), from.Links[0].MAC...), 0x89, 0x15)
		frame = append(frame, make([]byte, n)...)
		for range count {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: ifi.Index}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCountTrafficKernelCapture(t *testing.T) {
	// A capture of Linux 6.12 with Linux 6.12: SMC option in both directions, payload of
	// the connection in RoCE v2, CLC handshake in TCP (see testdata/README.md).
	f, err := os.Open(filepath.Join("testdata", "first_contact.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tr, err := CountTraffic(f)
	if err != nil {
		t.Fatal(err)
	}
	if tr.SYNs != 1 || tr.SMCSYNs != 1 || tr.SYNACKs != 1 || tr.SMCSYNACKs != 1 {
		t.Errorf("handshakes %+v, want one with the option both ways", tr)
	}
	if tr.RoCEv1.Packets+tr.RoCEv2.Packets == 0 || tr.MaxFlowPayload() == 0 || tr.MaxFlowPayload() > 2048 {
		t.Errorf("RoCE v1 %+v, v2 %+v, TCP %+v", tr.RoCEv1, tr.RoCEv2, tr.TCP)
	}
}

func TestCountTrafficBroken(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join("testdata", "first_contact.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range min(len(whole), 2000) {
		tr, err := CountTraffic(bytes.NewReader(whole[:n]))
		if (err == nil) != (tr != nil) {
			t.Fatalf("cut at %d: %v, %v", n, tr, err)
		}
		if n < 24 && err == nil {
			t.Errorf("cut at %d: no error", n)
		}
	}
	for _, s := range []string{"", strings.Repeat("x", 100)} {
		if _, err := CountTraffic(strings.NewReader(s)); err == nil {
			t.Errorf("no error for %q", s)
		}
	}
	// Frames of any length are counted once, and not read beyond their end.
	for n := range 100 {
		tr := &Traffic{Flows: make(map[Flow]*Tally)}
		tr.count(whole[40:min(40+n, len(whole))], 1000)
		if got := tr.Other.Packets + tr.TCP.Packets + tr.RoCEv1.Packets + tr.RoCEv2.Packets; got != 1 {
			t.Errorf("frame of %d bytes counted %d times", n, got)
		}
	}
}
