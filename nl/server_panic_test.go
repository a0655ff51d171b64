// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"context"
	"sync/atomic"
	"testing"

	"smcr/guard"
	"smcr/nl"
	"smcr/nl/nltest"
)

// badControl panics in Devices.
type badControl struct{ nl.Control }

func (badControl) Devices(context.Context) ([]nl.Device, error) { panic("planted") }

// TestServerPanic: a panic ends only the connection of the client that sent the request.
func TestServerPanic(t *testing.T) {
	var panics atomic.Int32
	address := serve(t, badControl{nltest.NewFake(nltest.SampleState())},
		nl.ServerConfig{Guard: &guard.Guard{Count: func() { panics.Add(1) }}})
	other, c := dial(t, address), dial(t, address)
	if _, err := other.SysInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Devices(t.Context()); err == nil {
		t.Error("no error")
	}
	for _, c := range []*nl.Client{other, dial(t, address)} {
		if _, err := c.SysInfo(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if panics.Load() == 0 {
		t.Error("no panic is counted")
	}
}
