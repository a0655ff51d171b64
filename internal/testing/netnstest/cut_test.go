// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"testing"
)

func TestCut(t *testing.T) {
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
