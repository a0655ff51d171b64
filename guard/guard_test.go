// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

func mustFail() { panic(io.ErrUnexpectedEOF) }

func TestDo(t *testing.T) {
	var log bytes.Buffer
	n := 0
	g := &Guard{Log: slog.New(slog.NewTextHandler(&log, nil)), Count: func() { n++ }}
	if err := g.Do("nothing", func() {}); err != nil || n != 0 || log.Len() != 0 {
		t.Errorf("without a panic: %v, counted %d, log %q", err, n, &log)
	}
	deferred := false
	err := g.Do("a test", func() {
		defer func() { deferred = true }()
		mustFail()
	})
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, io.ErrUnexpectedEOF) || e.What != "a test" || !deferred || n != 1 {
		t.Fatalf("%v, deferred %v, counted %d", err, deferred, n)
	}
	if !bytes.Contains(e.Stack, []byte("mustFail")) || !strings.Contains(log.String(), "mustFail") || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("the stack does not tell where it was: %s\n%s", e.Stack, &log)
	}
	// What the runtime finds.
	if err := g.Do("a test", func() { var list []int; _ = list[len(list)] }); err == nil || n != 2 {
		t.Errorf("%v, counted %d", err, n)
	}
}

func TestNil(t *testing.T) {
	var g *Guard
	if err := g.Do("a test", func() { panic("x") }); err == nil || err.Error() != "internal error in a test: x" {
		t.Errorf("%v", err)
	}
	if err := new(Guard).Do("a test", func() { panic("x") }); err == nil {
		t.Error("no error")
	}
}

// A goroutine that is to end does.
func TestGoexit(t *testing.T) {
	done := make(chan bool)
	go func() {
		ended := true
		defer func() { done <- ended }()
		_ = new(Guard).Do("a test", runtime.Goexit)
		ended = false
	}()
	if !<-done {
		t.Error("the goroutine went on")
	}
}

func TestFunc(t *testing.T) {
	n := 0
	g := &Guard{Count: func() { n++ }}
	ran := false
	g.Func("a test", func() { ran = true })()
	g.Func("a test", mustFail)()
	if !ran || n != 1 {
		t.Errorf("ran %v, counted %d", ran, n)
	}
}

// A panic of Elsewhere is handled where Elsewhere was called, and is logged once, with the
// stack of the goroutine in which it was.
func TestElsewhere(t *testing.T) {
	ran := false
	Elsewhere("a call", func() { ran = true })
	if !ran {
		t.Error("Elsewhere has not called the function")
	}
	var log bytes.Buffer
	g := &Guard{Log: slog.New(slog.NewTextHandler(&log, nil))}
	err := g.Do("a test", func() { Elsewhere("a call", mustFail) })
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Contains(e.Stack, []byte("mustFail")) {
		t.Errorf("%v", err)
	}
	if strings.Count(log.String(), "stack=") != 1 {
		t.Errorf("the log must have the stack once: %s", &log)
	}
}
