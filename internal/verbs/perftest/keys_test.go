// SPDX-License-Identifier: Apache-2.0

package perftest

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"smcr/internal/testing/codectest"
	"smcr/internal/testing/testkind"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
)

// What ib_write_bw 4.5-0.17 sent on Linux 6.12, on device rxe0 with address 10.9.9.1.
// TestExchange of internal/testing/rdmainterop captured it.
const golden = "0000:0001:000013:f3ec49:00000466:0000564bc98f80" +
	"00:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:09:09:01:00000000:\x00"

func keys() codectest.Codec[Keys] {
	c := codectest.Codec[Keys]{
		Golden: golden,
		Want: Keys{
			OutReads: 1, QPN: 0x13, PSN: 0xf3ec49, RKey: 0x466, VAddr: 0x564bc98f8000,
			GID: smc.GID{10: 0xff, 11: 0xff, 12: 10, 13: 9, 14: 9, 15: 1},
		},
		Parse: ParseKeys, Append: (*Keys).AppendTo,
	}
	for i := range len(golden) - 1 {
		c.Invalid = append(c.Invalid, i)
	}
	return c
}

func TestKeys(t *testing.T) { keys().Run(t) }

func FuzzParseKeys(f *testing.F) { keys().Fuzz(f) }

func talks(t *testing.T) (client, server *talk) {
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return &talk{Conn: a, client: true, patience: testkind.Patience}, &talk{Conn: b, patience: testkind.Patience}
}

// TestAgree checks that both sides choose the smaller path MTU.
func TestAgree(t *testing.T) {
	client, server := talks(t)
	type answer struct {
		a   agreement
		err error
	}
	there := make(chan answer, 1)
	go func() {
		a, err := server.agree(smc.MTU1024)
		there <- answer{a, err}
	}()
	a, err := client.agree(smc.MTU4096)
	s := <-there
	if err != nil || s.err != nil {
		t.Fatal(err, s.err)
	}
	want := agreement{version: version, cycle: defaultCycle, line: defaultLine, mtu: smc.MTU1024}
	if a != want || s.a != want {
		t.Errorf("client %+v, server %+v, want %+v", a, s.a, want)
	}
}

// TestAgreeRefuses checks that peers with another protocol are refused, and that the
// report of the client arrives.
func TestAgreeRefuses(t *testing.T) {
	good := "6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x10\x00" + "\x00\x00\x00\x40"
	for _, says := range []string{
		"5.60\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"GET / HTTP/1.1\r\n",
		good[:16] + "\xff\xff\xff\xff",
		good[:16] + "\x00\x00\x00\x07",
		good + "9\x00",
		good + "34",
	} {
		client, server := talks(t)
		// The client sends first, in messages of these lengths.
		go func() {
			defer client.Conn.Close()
			for _, n := range []int{16, 4, 4, 2} {
				if len(says) < n {
					return
				}
				if _, err := io.WriteString(client.Conn, says[:n]); err != nil {
					return
				}
				if _, err := io.ReadFull(client.Conn, make([]byte, n)); err != nil {
					return
				}
				says = says[n:]
			}
		}()
		if a, err := server.agree(smc.MTU1024); !errors.Is(err, ErrPeer) {
			t.Errorf("%+v, %v", a, err)
		}
	}
}

func TestReport(t *testing.T) {
	client, server := talks(t)
	want := Bandwidth{Size: 65536, Iters: 5000, Peak: 1234.5, Average: 1200.25, Rate: 0.019}
	done := make(chan error, 1)
	go func() {
		b := want
		done <- client.report(&b)
	}()
	var got Bandwidth
	if err := server.report(&got); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestSummary(t *testing.T) {
	at := time.Unix(0, 0)
	stamps := []time.Time{at}
	for i := range 100 {
		at = at.Add(time.Duration(i+1) * 2 * time.Microsecond)
		stamps = append(stamps, at)
	}
	got := summary(8, stamps, true)
	us := time.Microsecond
	want := Latency{
		Size: 8, Iters: 101, Min: us, Max: 100 * us, Typical: 50 * us, Average: 50500 * time.Nanosecond,
		Stdev: 28866 * time.Nanosecond, P99: 99 * us, P999: 100 * us,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestPeak(t *testing.T) {
	ms := time.Millisecond
	// Three messages of 10 ms each, but the last two take 12 ms together.
	posted := []time.Duration{0, 10 * ms, 11 * ms}
	completed := []time.Duration{10 * ms, 20 * ms, 22 * ms}
	if got, want := peak(1<<20, posted, completed), 2/0.012; got < want-1e-6 || got > want+1e-6 {
		t.Errorf("%v MiB/s, want %v", got, want)
	}
	if got := peak(1<<20, nil, nil); got != 0 {
		t.Errorf("%v MiB/s of nothing", got)
	}
}
