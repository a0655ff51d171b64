// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"
)

// page has the page and the list of the modules that it needs.
//
//go:embed page
var page embed.FS

// bound is how long the command may run. npm installs some hundred modules.
const bound = 30 * time.Minute

// Sizes in pixels. Rows have the height that Grafana gives them, and the distance between
// panels is that of Grafana.
const (
	width  = 1280
	row    = 30
	gap    = 8
	margin = 16
)

func main() {
	data := flag.String("data", "", "`file` with the results of the queries")
	out := flag.String("o", "", "`file` for the picture (PNG)")
	dashboard := flag.String("dashboard", "deploy/prometheus/smcr.dashboard.json", "`file` of the dashboard")
	work := flag.String("work", "", "`directory` for modules of npm and for the page; smcr/dashboard in the cache of the user if it is missing")
	flag.Parse()
	if err := run(*data, *out, *dashboard, *work); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func run(data, out, dashboard, work string) error {
	if data == "" || out == "" {
		return errors.New("no file of results or no file for the picture: see -help")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if work == "" {
		// Not in the source tree: tools that read all of it would read the modules.
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		work = filepath.Join(cache, "smcr", "dashboard")
	}
	for _, file := range []*string{&data, &dashboard, &work} {
		var err error
		if *file, err = filepath.Abs(*file); err != nil {
			return err
		}
	}
	rows, err := gridRows(dashboard)
	if err != nil {
		return err
	}
	if err := unpack(work); err != nil {
		return err
	}
	picture := filepath.Join(work, "page.png")
	for _, argv := range [][]string{
		{"npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"},
		{"node_modules/.bin/esbuild", "page.jsx", "--bundle", "--outfile=page.js", "--log-level=error", "--loader:.ttf=empty",
			"--alias:dashboard=" + dashboard, "--alias:data=" + data,
			`--define:process.env.NODE_ENV="production"`,
			fmt.Sprintf("--define:sizes={\"width\":%d,\"row\":%d,\"gap\":%d,\"margin\":%d}", width, row, gap, margin)},
		{"chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=15000",
			fmt.Sprintf("--window-size=%d,%d", width+2*margin, rows*(row+gap)-gap+2*margin),
			"--screenshot=" + picture, "file://" + filepath.Join(work, "page.html")},
	} {
		if err := command(ctx, work, argv); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(picture)
	if err != nil {
		return err
	}
	if b, err = reduce(b); err != nil {
		return fmt.Errorf("%s: %w", picture, err)
	}
	return os.WriteFile(out, b, 0o644)
}

// gridRows returns how many rows of the grid the panels of a dashboard take.
func gridRows(file string) (rows int, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var d struct {
		Panels []struct{ GridPos struct{ Y, H int } }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	for _, p := range d.Panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	return rows, nil
}

// unpack writes the files of the page to a directory.
func unpack(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := fs.Glob(page, "page/*")
	if err != nil {
		return err
	}
	for _, name := range files {
		b, err := page.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// command runs a command in a directory. An error has its output.
func command(ctx context.Context, dir string, argv []string) error {
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", argv[0], err, &log)
	}
	return nil
}
