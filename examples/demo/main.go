// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"smcr/internal/testing/netnstest"
)

const (
	port = "8080"
	// limit for the demo without the builds before it. It takes some seconds.
	limit = 2 * time.Minute
	// minShare of all bytes on the wire must be RoCE.
	minShare = 0.99
)

type demo struct {
	smcr     string // path of the program, absolute
	programs string // directory of webserver and webclient
	bytes    int64
	plain    bool
	dir      string // for the capture, and for programs that the demo builds
	pair     *netnstest.Pair
}

func main() {
	var d demo
	flag.StringVar(&d.smcr, "smcr", "bin/smcr", "the smcr `program`")
	flag.StringVar(&d.programs, "programs", "", "the `directory` of webserver and webclient; built if empty")
	flag.Int64Var(&d.bytes, "bytes", 1<<30, "transfer `N` bytes")
	flag.BoolVar(&d.plain, "plain", false, "run the same programs without smcr run, for comparison")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func (d *demo) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root to make network namespaces: sudo make demo")
	}
	if d.smcr, err = filepath.Abs(d.smcr); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "smcr-demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	if d.programs == "" {
		d.programs = d.dir
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", d.dir, "./examples/demo/webserver", "./examples/demo/webclient")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build webserver and webclient: %w\n%s", err, out)
		}
	}

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if d.pair, err = netnstest.Create(netnstest.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.pair.Close()) }()
	a, b := d.pair.A, d.pair.B
	step("two hosts: A %s in namespace %s, B %s in namespace %s, joined by a veth pair", a.Addr(), a.Name, b.Addr(), b.Name)

	capture, err := a.Capture(filepath.Join(d.dir, "a.pcap"), netnstest.CaptureOptions{SnapLen: 128})
	if err != nil {
		return err
	}
	server, err := d.start(ctx, a, "webserver", "-listen", a.Addr()+":"+port)
	if err != nil {
		return err
	}
	defer server.Kill()
	if err := server.WaitOutput("listening", 20*time.Second); err != nil {
		return err
	}
	watch, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	drawn := make(chan error, 1)
	url := fmt.Sprintf("http://%s:%s/bytes/%d", a.Addr(), port, d.bytes)
	client, err := d.start(ctx, b, "webclient", "-pause", "3s", url)
	if err != nil {
		return err
	}
	defer client.Kill()
	p := newPicture(d.pair, d.bytes)
	p.head("A "+a.Addr()+" webserver", "B "+b.Addr()+" webclient")
	go func() { drawn <- p.run(watch, capture) }()
	if err := client.WaitOutput("transferred", limit); err != nil {
		return err
	}
	stopWatch()
	if err := <-drawn; err != nil {
		return err
	}
	if !d.plain {
		step("while the connection is open")
		for _, args := range [][]string{{"linkgroup", "list"}, {"link", "list"}, {"connection", "list"}, {"stats", "show"}} {
			if err := d.show(ctx, b, args...); err != nil {
				return err
			}
		}
	}
	if err := client.Wait(limit); err != nil {
		return fmt.Errorf("%w\n%s", err, client.Log())
	}
	step("output of the client")
	fmt.Print(indent(client.Log()))
	if err := server.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := server.Wait(10 * time.Second); err != nil {
		return fmt.Errorf("server: %w\n%s", err, server.Log())
	}
	step("output of the server")
	fmt.Print(indent(server.Log()))
	return d.report(capture)
}

// start starts one of the demo's programs under smcr run.
func (d *demo) start(ctx context.Context, h *netnstest.Host, name string, args ...string) (*netnstest.Process, error) {
	argv := append([]string{filepath.Join(d.programs, name)}, args...)
	shown := name + " " + strings.Join(args, " ")
	if !d.plain {
		argv = append([]string{d.smcr, "run", "--mode", "user", "-v", "--"}, argv...)
		shown = "smcr run -v -- " + shown
	}
	step("on %s: %s", d.letter(h), shown)
	return h.Start(h.Command(ctx, argv[0], argv[1:]...))
}

// show prints the output of an smcr command.
func (d *demo) show(ctx context.Context, h *netnstest.Host, args ...string) error {
	out, err := h.Output(ctx, d.smcr, args...)
	if err != nil {
		return err
	}
	fmt.Printf("  %s# smcr %s\n%s\n", d.letter(h), strings.Join(args, " "), indent(out))
	return nil
}

func (d *demo) letter(h *netnstest.Host) string {
	if h == d.pair.A {
		return "A"
	}
	return "B"
}

// report prints what the capture holds and judges it.
func (d *demo) report(capture *netnstest.Capture) error {
	dropped, err := capture.Stop()
	if err != nil {
		return err
	}
	traffic, err := capture.Count()
	if err != nil {
		return err
	}
	step("on the wire, captured by tcpdump on A (%d packets missed)", dropped)
	fmt.Printf("  %-28s %9s %13s\n", "", "packets", "bytes")
	for _, row := range []struct {
		name  string
		tally netnstest.Tally
	}{
		{"RoCE v1, ethertype 0x8915", traffic.RoCEv1},
		{"RoCE v2, UDP port 4791", traffic.RoCEv2},
		{"TCP", traffic.TCP},
		{"other (ARP, IPv6 discovery)", traffic.Other},
	} {
		fmt.Printf("  %-28s %9d %13d\n", row.name, row.tally.Packets, row.tally.Bytes)
	}
	fmt.Printf("  %.2f %% of the bytes crossed as RoCE; payload of TCP: %d bytes\n", 100*traffic.RoCEShare(), traffic.TCP.Payload)
	if share := traffic.RoCEShare(); !d.plain && share < minShare {
		return fmt.Errorf("only %.2f %% of the bytes crossed as RoCE, want %.0f %%: see above why the connection was not SMC-R", 100*share, 100*minShare)
	}
	return nil
}

func step(format string, args ...any) { fmt.Printf("\n* "+format+"\n", args...) }

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString("  " + line)
	}
	return b.String()
}
