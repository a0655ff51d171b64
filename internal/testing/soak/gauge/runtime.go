// SPDX-License-Identifier: Apache-2.0

package gauge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

// Question is what [Ask] asks a process.
type Question string

// The questions. A CPU profile is the question "profile " with a duration, such as
// "profile 5s".
const (
	// Live asks for a [Sample] in JSON. The process collects its garbage before it answers,
	// and returns free memory to the system.
	Live Question = "live"
	// Stacks asks for the stacks of all goroutines, grouped, as text.
	Stacks Question = "stacks"
	// HeapProfile asks for a heap profile for `go tool pprof`.
	HeapProfile Question = "heap"
)

// askTime bounds a question, besides the duration of a profile.
const askTime = 20 * time.Second

// Serve answers the questions of [Ask] at a unix socket until the process ends. Any user
// who can reach the path can ask.
func Serve(path string) error {
	ln, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		// smcr run -v starts this executable with the same arguments (package waiter): the last one answers.
		_ = os.Remove(path)
		ln, err = net.Listen("unix", path)
	}
	if err != nil {
		return fmt.Errorf("gauge: %w", err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Second) // no descriptors now
				continue
			}
			go answer(c)
		}
	}()
	return nil
}

func answer(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * askTime))
	b := make([]byte, 64)
	n, err := c.Read(b)
	if err != nil {
		return
	}
	q := Question(b[:n])
	duration, profile := strings.CutPrefix(string(q), "profile ")
	switch {
	case q == Live:
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s, err := Of(os.Getpid())
		if err != nil {
			return
		}
		// The goroutine and the descriptor of this answer do not count, and neither does
		// the descriptor of the folder that Of reads.
		s.Goroutines, s.Heap = runtime.NumGoroutine()-1, int64(m.HeapAlloc)
		s.Descriptors -= 2
		_ = json.NewEncoder(c).Encode(s)
	case q == Stacks:
		_ = pprof.Lookup("goroutine").WriteTo(c, 1)
	case q == HeapProfile:
		runtime.GC()
		_ = pprof.Lookup("heap").WriteTo(c, 0)
	case profile:
		d, err := time.ParseDuration(duration)
		if err != nil {
			return
		}
		var buf bytes.Buffer
		if pprof.StartCPUProfile(&buf) == nil {
			time.Sleep(d)
			pprof.StopCPUProfile()
			_, _ = buf.WriteTo(c)
		}
	}
}

// Ask asks the process that serves at a path, and returns the answer.
func Ask(path string, q Question) ([]byte, error) {
	wait := askTime
	if text, ok := strings.CutPrefix(string(q), "profile "); ok {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("gauge: %w", err)
		}
		wait += d
	}
	c, err := net.DialTimeout("unix", path, askTime)
	if err != nil {
		return nil, fmt.Errorf("gauge: %w", err)
	}
	defer c.Close()
	err = c.SetDeadline(time.Now().Add(wait))
	if err == nil {
		_, err = c.Write([]byte(q))
	}
	var b []byte
	if err == nil {
		b, err = io.ReadAll(c)
	}
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("no answer to %q", q)
	}
	if err != nil {
		return nil, fmt.Errorf("gauge: %w", err)
	}
	return b, nil
}

// Read returns what the process has that serves at a path.
func Read(path string) (Sample, error) {
	var s Sample
	b, err := Ask(path, Live)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("gauge: %w", err)
	}
	return s, nil
}
