// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"smcr/internal/testing/testkind"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CaptureOptions are the options of a capture.
type CaptureOptions struct {
	// Link is the number of the host's link.
	Link int
	// SnapLen is the number of bytes kept of each packet; 0 keeps all. The
	// length on the wire is recorded in any case.
	SnapLen int
	// Filter is a pcap-filter(7) expression; empty takes every packet.
	Filter string
}

// Capture is a running packet capture by tcpdump.
type Capture struct {
	// File is the capture file, classic pcap.
	File string

	proc *Process
}

// kernelBuffer is the size of the kernel's buffer in KiB. It has room for bursts while
// both cores are busy with the traffic.
const kernelBuffer = 64 << 10

// countsRE matches the line that tcpdump prints on SIGUSR1.
var countsRE = regexp.MustCompile(`(\d+) packets? captured, (\d+) packets? received by filter, (\d+) packets? dropped by kernel`)

// Capture starts a capture of one of the host's links into file. It returns when tcpdump
// captures, so that all packets that are sent afterwards are captured.
func (h *Host) Capture(file string, o CaptureOptions) (*Capture, error) {
	// Immediate mode is needed because otherwise the packets of a block that is not full
	// are lost at the end.
	args := []string{
		"-i", h.Links[o.Link].Name, "-w", file, "-s", strconv.Itoa(o.SnapLen),
		"-B", strconv.Itoa(kernelBuffer), "-n", "--immediate-mode", "-Z", "root",
	}
	if o.Filter != "" {
		args = append(args, o.Filter)
	}
	p, err := h.Start(h.Command(context.Background(), "tcpdump", args...))
	if err != nil {
		return nil, err
	}
	if err := p.WaitOutput("listening on", testkind.Patience); err != nil {
		p.Kill()
		return nil, err
	}
	return &Capture{File: file, proc: p}, nil
}

// StartCapture is Capture for a test: the file is in the temporary directory of the test.
// At the end of the test it stops the capture, unless Stop was called before.
func (h *Host) StartCapture(t testing.TB, o CaptureOptions) *Capture {
	t.Helper()
	Require(t, "tcpdump")
	c, err := h.Capture(filepath.Join(t.TempDir(), h.Name+".pcap"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.proc.Kill)
	return c
}

// restTime is the time without new packets after which no more are expected.
const restTime = 5 * time.Second

// Stop ends the capture when every packet that was on the link at the time of the call is
// in the file. It returns the number of packets that the kernel dropped because tcpdump
// was too slow.
func (c *Capture) Stop() (dropped int, err error) {
	// After SIGINT, tcpdump ends even if packets are in the buffer of the kernel. So wait
	// until it has read all packets that the kernel counted.
	last, since := -1, time.Now()
	err = Until(30*time.Second, func() error {
		seen := len(c.proc.Log())
		if err := c.proc.Signal(unix.SIGUSR1); err != nil {
			return Stop(fmt.Errorf("netnstest: tcpdump: %w: %s", err, c.proc.Log()))
		}
		var m []string
		if err := Until(time.Second, func() error {
			if m = countsRE.FindStringSubmatch(c.proc.Log()[seen:]); m == nil {
				return errors.New("netnstest: tcpdump does not report its counts")
			}
			return nil
		}); err != nil {
			return err
		}
		captured, _ := strconv.Atoi(m[1])
		received, _ := strconv.Atoi(m[2])
		if captured != last {
			last, since = captured, time.Now()
		}
		// The kernel also counts packets from before tcpdump set its filter. tcpdump
		// drops these. If no more packets are read for restTime, tcpdump has read the
		// rest.
		if dropped, _ = strconv.Atoi(m[3]); captured+dropped < received && time.Since(since) < restTime {
			return fmt.Errorf("netnstest: tcpdump has read %d of %d packets", captured, received)
		}
		return nil
	})
	if err != nil {
		c.proc.Kill()
		return 0, err
	}
	if err := c.proc.Signal(unix.SIGINT); err != nil {
		return 0, fmt.Errorf("netnstest: stop tcpdump: %w", err)
	}
	if err := c.proc.Wait(testkind.Patience); err != nil {
		c.proc.Kill()
		return 0, fmt.Errorf("netnstest: tcpdump: %w: %s", err, c.proc.Log())
	}
	return dropped, nil
}

// Count reads the file of a stopped capture.
func (c *Capture) Count() (*Traffic, error) {
	f, err := os.Open(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return CountTraffic(f)
}
