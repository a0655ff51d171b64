// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"smcr/internal/smctools/tool"
)

const dbgUsage = "\nUsage: smc_dbg [ OPTIONS ]\n\n" +
	"Collect debug information\n\n" +
	"   -h, --help           display this message\n" +
	"   -t, --tgz            generate .tgz file\n" +
	"   -v, --version        display version info\n\n"

// A collector collects what programs print.
type collector struct {
	Programs map[string]Main
	Dir      string // of the archive
	Arch     string // of the machine, as in package runtime
	Sysfs    string // where sysfs is mounted
	Now      func() time.Time
}

// newCollector returns a collector for this machine.
func newCollector(programs map[string]Main) *collector {
	return &collector{Programs: programs, Dir: "/tmp", Arch: runtime.GOARCH, Sysfs: "/sys", Now: time.Now}
}

// A dbgSection is a file of the archive, or a part of the output.
type dbgSection struct {
	name     string
	commands []string
	print    func(e *tool.Env) // in place of commands
}

func (c *collector) sections(ctx context.Context) []dbgSection {
	list := []dbgSection{{name: "version.txt", commands: []string{
		"smcss -v", "smc_dbg -v", "smc_pnet -v", "smc_rnics -v", "smc_chk -v", "smcd -v", "smcr -v",
	}}}
	if c.Arch == "s390x" {
		list = append(list,
			dbgSection{name: "devices.txt", print: func(e *tool.Env) { c.devices(ctx, e) }},
			dbgSection{name: "smcss_smcd", commands: []string{"smcss --smcd"}})
	}
	return append(list,
		dbgSection{name: "smcss_all.txt", commands: []string{"smcss --all --debug"}},
		dbgSection{name: "smcss_smcr", commands: []string{"smcss --smcr"}},
		dbgSection{name: "pnet_table.txt", commands: []string{"smc_pnet --show"}},
		dbgSection{name: "smcr_links.txt", commands: []string{"smcr -d linkgroup link-show"}},
		dbgSection{name: "smcd_lgs.txt", commands: []string{"smcd -d linkgroup show"}},
		dbgSection{name: "smcd_info.txt", commands: []string{"smcd info"}},
		dbgSection{name: "smcd_stats.txt", commands: []string{"smcd -d stats"}},
		dbgSection{name: "smcr_stats.txt", commands: []string{"smcr -d stats"}},
	)
}

// main runs smc_dbg, which collects what the other programs print, and returns its exit
// status.
func (c *collector) main(ctx context.Context, e *tool.Env, args []string) int {
	g := tool.Getopt{Program: "getopt", Short: "hvt", Long: []tool.LongOption{
		{Name: "help", Short: 'h'}, {Name: "version", Short: 'v'}, {Name: "tgz", Short: 't'},
	}}
	opts, _, ok := g.All(args, func(message string) { e.Errorf("%s\n", message) })
	if !ok {
		return 1
	}
	archive := false
	for _, o := range opts {
		switch o.Letter {
		case 'h':
			e.Printf(dbgUsage)
			return 0
		case 'v':
			e.Printf("smc_dbg utility, smc-tools-%s\n", tool.Version)
			return 0
		case 't':
			archive = true
		}
	}
	if !archive {
		for _, s := range c.sections(ctx) {
			e.Printf("\n")
			c.run(ctx, e, s, e.IO.Out, e.IO.ErrOut)
		}
		return 0
	}
	path, err := c.archive(ctx, e)
	if err != nil {
		e.Errorf("%s: %v\n", e.Name, err)
		return 1
	}
	e.Printf("Debug output written to %s\n", path)
	return 0
}

// run prints a section.
func (c *collector) run(ctx context.Context, e *tool.Env, s dbgSection, out, errOut io.Writer) {
	if s.print != nil {
		s.print(e.As(e.Name, out, errOut))
	}
	for _, command := range s.commands {
		c.program(ctx, e, command, out, errOut)
	}
}

// program runs a program. Only its output matters, not its status.
func (c *collector) program(ctx context.Context, e *tool.Env, command string, out, errOut io.Writer) {
	words := strings.Fields(command)
	if words[0] == "smc_dbg" {
		c.main(ctx, e.As(words[0], out, errOut), words[1:])
		return
	}
	c.Programs[words[0]](ctx, e.As(words[0], out, errOut), words[1:])
}

// archive writes a compressed archive with a file for each section, which has the error
// messages too. If the archive cannot be written it is removed.
func (c *collector) archive(ctx context.Context, e *tool.Env) (path string, err error) {
	f, err := os.CreateTemp(c.Dir, "smc_dbg-*.tgz")
	if err != nil {
		return "", err
	}
	if err := errors.Join(c.write(ctx, e, f), f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

func (c *collector) write(ctx context.Context, e *tool.Env, f *os.File) error {
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	dir := strings.TrimSuffix(filepath.Base(f.Name()), ".tgz") + "/"
	now := c.Now()
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o700, ModTime: now}); err != nil {
		return err
	}
	for _, s := range c.sections(ctx) {
		var b bytes.Buffer
		c.run(ctx, e, s, &b, &b)
		if err := w.WriteHeader(&tar.Header{Name: dir + s.name, Mode: 0o644, Size: int64(b.Len()), ModTime: now}); err != nil {
			return err
		}
		if _, err := w.Write(b.Bytes()); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), z.Close())
}

// devices prints the network devices of an IBM Z machine: those on the channel
// subsystem, then the PCI functions.
func (c *collector) devices(ctx context.Context, e *tool.Env) {
	line := func(path ...string) string {
		b, err := os.ReadFile(filepath.Join(append([]string{c.Sysfs, "bus/ccwgroup/devices"}, path...)...))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	e.Printf("CCW Devices:\n  Device    CHPID  Port  PNET ID\n  -------------------------------------------\n")
	entries, _ := os.ReadDir(filepath.Join(c.Sysfs, "bus/ccwgroup/devices"))
	for _, d := range entries {
		var id bytes.Buffer
		c.program(ctx, e, "smc_chk -i "+line(d.Name(), "if_name"), &id, io.Discard)
		e.Printf("  %8s  %4s   %-4s  %s\n", d.Name(), "0x"+strings.ToLower(line(d.Name(), "chpid")), line(d.Name(), "portno"), strings.TrimSpace(id.String()))
	}
	var b bytes.Buffer
	c.program(ctx, e, "smc_rnics", &b, e.IO.ErrOut)
	e.Printf("\nPCI Devices:\n")
	for l := range strings.Lines(b.String()) {
		fmt.Fprint(e.IO.Out, "  ", l)
	}
}
