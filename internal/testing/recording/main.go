// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

// bound is how long the command may run.
const bound = 10 * time.Minute

func main() {
	out := flag.String("o", "", "`file` for the SVG")
	title := flag.String("title", "", "`text` above the recording; the command if it is missing")
	flag.Parse()
	if err := run(*out, *title, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func run(out, title string, argv []string) error {
	if out == "" || len(argv) == 0 {
		return errors.New("no file or no command: see -help")
	}
	if title == "" {
		title = fmt.Sprint(argv)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	lines, err := record(ctx, argv)
	if err != nil {
		return err
	}
	return os.WriteFile(out, draw(title, lines), 0o644)
}

// record runs a command and returns what it prints, on both outputs. It shows this on
// standard error too.
func record(ctx context.Context, argv []string) ([]Line, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	begin := time.Now()
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return nil, err
	}
	lines, rerr := readLines(io.TeeReader(r, os.Stderr), begin)
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", argv[0], err)
	}
	return lines, rerr
}

// readLines reads lines until the end, each with its time since begin.
func readLines(r io.Reader, begin time.Time) (lines []Line, err error) {
	in := bufio.NewScanner(r)
	for in.Scan() {
		lines = append(lines, Line{time.Since(begin), in.Text()})
	}
	return lines, in.Err()
}
