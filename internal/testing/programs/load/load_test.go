// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

const limit = testkind.Patience

// start starts a server on loopback for the time of the test.
func start(t *testing.T) (network, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := network{
		dial:   func(address string) (net.Conn, error) { return net.DialTimeout("tcp", address, limit) },
		listen: func(string) (net.Listener, error) { return ln, nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.serve(ctx, "") }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(limit):
			t.Error("the server does not end")
		}
	})
	return n, ln.Addr().String()
}

// TestMeasurements: each measurement counts what was done, for any size.
func TestMeasurements(t *testing.T) {
	testkind.System(t)
	n, address := start(t)
	const d = 20 * time.Millisecond
	for name, measure := range map[string]func(string, time.Duration, int) (int64, time.Duration, error){
		"write": n.write, "roundtrip": n.roundTrip, "connect": n.connect,
	} {
		for _, size := range []int{1, 1000, maxEcho} {
			count, took, err := measure(address, d, size)
			if err != nil || count < 1 || took < d {
				t.Errorf("%s of %d bytes: %d in %v, %v", name, size, count, took, err)
			}
			if name == "write" && count%int64(size) != 0 {
				t.Errorf("%d bytes in writes of %d", count, size)
			}
		}
	}
}

func TestMany(t *testing.T) {
	testkind.System(t)
	n, address := start(t)
	var out bytes.Buffer
	if err := n.many(address, strings.NewReader("open 3 20s\nopen 40 20s\nrun 20ms\nopen 50 0s\n"), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || lines[0] != "open 3" || lines[1] != "open 40" || lines[3] != "open 40" {
		t.Fatalf("%q", lines)
	}
	var count, seconds float64
	if _, err := fmt.Sscanf(lines[2], "ran %f %f", &count, &seconds); err != nil || count < 40 || seconds < 0.02 {
		t.Errorf("%q: %v", lines[2], err)
	}
	for _, bad := range []string{"open x 1s", "open 3", "run", "walk"} {
		if err := n.many(address, strings.NewReader(bad+"\n"), &out); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

// TestAnswerRefuses: the server refuses a connection that does not begin like that of a
// client.
func TestAnswerRefuses(t *testing.T) {
	for _, head := range [][]byte{{'x', 0, 0, 0, 1}, {opEcho, 0, 0, 0, 0}, {opEcho, 0, 1, 0, 1}, {opSink, 0xff, 0, 0, 0}, {opEcho, 0}} {
		client, server := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- answer(server) }()
		if _, err := client.Write(head); err != nil {
			t.Fatal(err)
		}
		client.Close()
		if err := <-done; err == nil {
			t.Errorf("% x is accepted", head)
		}
	}
}
