// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgress checks what a progress line says, and when.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var quick, slow bytes.Buffer
		p := newProgress(&quick, "waiting")
		time.Sleep(progressAfter - time.Millisecond)
		p.Stop()
		p.Stop()
		time.Sleep(time.Minute)
		if quick.Len() > 0 {
			t.Errorf("a quick command says %q", quick.String())
		}
		p = newProgress(&slow, "waiting for\x1b[2J the stack")
		time.Sleep(progressAfter + time.Millisecond)
		p.Now("starting the stack")
		time.Sleep(progressEvery)
		p.Stop()
		time.Sleep(time.Minute)
		want := eraseLine + "smcr: waiting for?[2J the stack: 2 s" + eraseLine + "smcr: starting the stack: 3 s" + eraseLine
		if slow.String() != want {
			t.Errorf("%q, want %q", slow.String(), want)
		}
	})
}

// TestNoProgress checks that nothing is said without a terminal.
func TestNoProgress(t *testing.T) {
	streams, _, _, errOut := MemoryStreams()
	p := streams.Progress("waiting")
	p.Now("waiting more")
	p.Stop()
	if p != nil || errOut.Len() > 0 {
		t.Errorf("%v, %q", p, errOut)
	}
	if p := (*IOStreams)(nil).Progress("waiting"); p != nil {
		t.Error("progress without streams")
	}
}
