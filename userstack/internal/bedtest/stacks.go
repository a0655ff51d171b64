// SPDX-License-Identifier: Apache-2.0

package bedtest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

// In this file, C is *userstack.Conn and a stack is a *userstack.Stack. This package
// cannot name these types.

// Log returns the log of a stack on h: standard error, with all messages, if
// SMCR_TEST_LOG is set in the environment. Otherwise it returns nil.
func Log(h *simfabric.Host) *slog.Logger {
	if os.Getenv("SMCR_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("host", h.Name())
}

// CloseStack closes a stack and checks that it has released its link groups and its
// memory. The test may have closed the stack before: then Close returns closed. The
// name is for the messages.
func CloseStack[C any](t testing.TB, name string, stack io.Closer, closed error) {
	t.Helper()
	if err := stack.Close(); err != nil && !errors.Is(err, closed) {
		t.Errorf("close %s: %v", name, err)
	}
	in := inside.InspectorOf[C](stack)
	if n := in.Ending(); n > 0 {
		t.Errorf("%s: %d link groups have not released their resources", name, n)
	}
	if n := in.MemoryInUse(); n != 0 {
		t.Errorf("%s: %d bytes of memory are still in use", name, n)
	}
}

// Rendezvous runs both sides of a rendezvous on the two ends of a TCP connection, which
// have type T. The sides are the methods Client and Server of two stacks.
func Rendezvous[T, C any](client, server func(context.Context, T) (C, error), ct, st T) (c, s C, cerr, serr error) {
	var wg sync.WaitGroup
	wg.Go(func() { s, serr = server(context.Background(), st) })
	c, cerr = client(context.Background(), ct)
	wg.Wait()
	return c, s, cerr, serr
}

// ActiveLinks returns the number of active links of the only link group of a stack.
func ActiveLinks[C any](t testing.TB, stack any) (n int) {
	t.Helper()
	gs := inside.InspectorOf[C](stack).Groups()
	if len(gs) != 1 {
		t.Fatalf("%d link groups, want 1: %v", len(gs), names(gs))
	}
	gs[0].View(func(core *linkgroup.Group) {
		for _, l := range core.Links() {
			if l.State() == smc.LinkActive {
				n++
			}
		}
	})
	return n
}

func names(gs []inside.Group) (list []string) {
	for _, g := range gs {
		list = append(list, g.Name())
	}
	return list
}
