// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"testing"

	"smcr/internal/testing/testkind"
)

func TestCut(t *testing.T) {
	testkind.System(t)
	p := New(t, Options{})
	c := p.B.StartCapture(t, CaptureOptions{Filter: "ether proto 0x8915"})
	for _, cut := range []bool{true, false} {
		f := p.Uncut
		if cut {
			f = p.Cut
		}
		if err := f(0); err != nil {
			t.Fatal(err)
		}
		sendRoCE(t, p.A, p.B, 100)
	}
	if _, err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	tr, err := c.Count()
	if err != nil {
		t.Fatal(err)
	}
	if tr.RoCEv1.Packets != 1 {
		t.Errorf("%d frames arrived, want only the one after Uncut", tr.RoCEv1.Packets)
	}
}

// TestSetLoss: a link drops about the share of the packets that it is to drop.
func TestSetLoss(t *testing.T) {
	testkind.System(t)
	const sent = 300
	p := New(t, Options{})
	c := p.B.StartCapture(t, CaptureOptions{Filter: "ether proto 0x8915"})
	if err := p.B.SetLoss(0, 0.3); err != nil {
		t.Fatal(err)
	}
	sendRoCEFrames(t, p.A, p.B, 100, sent)
	if err := p.B.SetLoss(0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	tr, err := c.Count()
	if err != nil {
		t.Fatal(err)
	}
	// 12 standard deviations around 70 %.
	if got := tr.RoCEv1.Packets; got < sent*70/100-95 || got > sent*70/100+95 {
		t.Errorf("%d of %d frames arrived with a loss of 30 %%", got, sent)
	}
}
