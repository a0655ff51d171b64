// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"smcr/internal/testing/guest/control"
)

const (
	// SharePath is the directory that a guest shares with the host. Each sees at once
	// what the other one writes.
	SharePath = "/run/share"

	// bootLimit limits a boot, which takes some seconds on an idle machine and longer on
	// a busy one.
	bootLimit = 4 * time.Minute

	// pushPath is the directory for Push. pushLimit is how long one Push may take.
	pushPath  = "/run/push"
	pushLimit = time.Minute

	// firstInPath is the first directory of PATH, also in login shells.
	firstInPath = "/usr/local/sbin"

	defaultMemory = 1536
	// QEMU before 8.1 may run old code when one emulated CPU patches code that another
	// one is translating: a kernel with two CPUs then sometimes panics. A guest with one
	// CPU is also less slow on a busy machine.
	defaultCPUs  = 1
	defaultLimit = 10 * time.Minute
)

// A Config describes a guest. The zero value describes one without links to other guests.
type Config struct {
	// Name is the host name. The default is "guest".
	Name string

	// Memory in MiB and the number of CPUs. The defaults are 1536 and 1.
	Memory, CPUs int

	// NICs are the guest's ends of links to other guests.
	NICs []NIC

	// Limit is how long the guest may run, including the boot. Then it is killed, and its
	// errors match ErrLimit. The default is 10 minutes.
	Limit time.Duration

	// TrustTSC keeps the kernel on the TSC even if its watchdog runs late, as on a busy
	// machine. Otherwise it changes to the HPET, and each reading of the HPET is an exit
	// to QEMU, which takes 2.7 µs instead of 0.2 µs. This is for benchmarks, on a quiet
	// machine: a kernel that boots on a busy one may measure the TSC wrongly, and without
	// the watchdog its clock then runs at the wrong speed.
	TrustTSC bool

	// Series is that of the kernel; nil is WithSMC.
	Series *Series

	// Short means that [New] boots the guest in the short form of tests, too. One such
	// test is enough: a boot takes half a minute of a processor.
	Short bool

	// Terminal connects the terminal of the guest to that of this process, for
	// [Guest.Shell].
	Terminal bool
}

// A Guest is a running machine.
type Guest struct {
	cfg    Config
	kernel Kernel
	hello  control.Hello
	dir    string
	port   *os.File
	proc   *process
	dog    *watchdog
	limit  *time.Timer

	sendMu sync.Mutex // held while a frame is written

	mu       sync.Mutex
	commands map[uint32]*Cmd
	last     uint32 // number of the newest command
	cause    error  // why the guest ended, or nil

	readerDone chan struct{}
	closeOnce  sync.Once
	closeErr   error
}

// Available returns nil, or an error that matches [ErrUnavailable] and says what this
// machine lacks. It does not look for a kernel.
func Available() error {
	if runtime.GOARCH != "amd64" {
		return unavailable("guests need the programs of an amd64 machine, this is %s", runtime.GOARCH)
	}
	if err := needPrograms(emulator, "depmod", "modprobe", "rdma", "ip"); err != nil {
		return unavailable("%w", err)
	}
	return nil
}

// Boot boots a guest and returns when the guest accepts commands. The caller closes the
// guest. The context limits the boot only.
func Boot(ctx context.Context, cfg Config) (*Guest, error) {
	guests, err := bootAll(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return guests[0], nil
}

// BootPair boots two guests with the names a and b, whose devices eth0 are linked to each
// other. The rest is as in the Config. The caller closes both.
func BootPair(ctx context.Context, cfg Config) (a, b *Guest, err error) {
	x, y, err := Wire()
	if err != nil {
		return nil, nil, err
	}
	ca, cb := cfg, cfg
	ca.Name, ca.NICs = "a", []NIC{x}
	cb.Name, cb.NICs = "b", []NIC{y}
	guests, err := bootAll(ctx, ca, cb)
	if err != nil {
		return nil, nil, err
	}
	return guests[0], guests[1], nil
}

// bootAll boots guests at the same time: all of them or none.
func bootAll(ctx context.Context, cfgs ...Config) ([]*Guest, error) {
	defer func() {
		// QEMU has its own copies of the descriptors.
		for _, c := range cfgs {
			for _, n := range c.NICs {
				n.Close()
			}
		}
	}()
	if err := Available(); err != nil {
		return nil, err
	}
	series := &WithSMC
	if len(cfgs) > 0 && cfgs[0].Series != nil {
		series = cfgs[0].Series // of all
	}
	kernel, err := series.Find(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	var initramfs []byte
	guests := make([]*Guest, len(cfgs))
	for i, c := range cfgs {
		g, err := prepare(c, kernel)
		if err == nil {
			guests[i] = g
			if initramfs == nil {
				initramfs, err = buildInitramfs(ctx, kernel, g.dir)
			}
		}
		if err == nil {
			err = g.start(initramfs)
		}
		if err != nil {
			return nil, errors.Join(err, closeAll(guests))
		}
	}
	for _, g := range guests {
		if err := g.awaitHello(ctx); err != nil {
			return nil, errors.Join(err, closeAll(guests))
		}
	}
	return guests, nil
}

func closeAll(guests []*Guest) error {
	var errs []error
	for _, g := range guests {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}

// prepare makes the directory of a guest.
func prepare(cfg Config, kernel Kernel) (*Guest, error) {
	cfg.Name = cmp.Or(cfg.Name, "guest")
	cfg.Memory = cmp.Or(cfg.Memory, defaultMemory)
	cfg.CPUs = cmp.Or(cfg.CPUs, defaultCPUs)
	cfg.Limit = cmp.Or(cfg.Limit, defaultLimit)
	dir, err := os.MkdirTemp("", fmt.Sprintf("smcr-guest-%d-", os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	dog, err := watch(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	g := &Guest{
		cfg: cfg, kernel: kernel, dir: dir, dog: dog,
		commands:   make(map[uint32]*Cmd),
		readerDone: make(chan struct{}),
	}
	if err := os.Mkdir(g.Share(), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("guest: %w", err), dog.remove())
	}
	return g, nil
}

// start starts the machine.
func (g *Guest) start(initramfs []byte) error {
	if err := os.WriteFile(filepath.Join(g.dir, "initramfs"), initramfs, 0o600); err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	g.proc, err = startProcess(&machine{cfg: g.cfg, kernel: g.kernel, dir: g.dir, port: theirs})
	if err != nil {
		return errors.Join(err, ours.Close())
	}
	g.port = ours
	g.limit = time.AfterFunc(g.cfg.Limit, func() {
		g.end(fmt.Errorf("%w (%v)", ErrLimit, g.cfg.Limit))
		g.proc.kill() // the port ends then, and with it the commands
	})
	return nil
}

// awaitHello waits for the agent and then starts a goroutine that reads the port.
func (g *Guest) awaitHello(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = g.proc.cmd.Process.Kill() })
	defer stop()
	r := control.NewReader(g.port)
	f, err := r.Next()
	if err == nil && f.Type == control.TypeHello {
		err = json.Unmarshal(f.Data, &g.hello)
	}
	if err != nil {
		g.proc.kill()
		close(g.readerDone)
		return fmt.Errorf("guest: %s does not boot: %w%s", g.cfg.Name, cmp.Or(g.ended(), ctx.Err(), err), g.lastOutput())
	}
	go g.read(r)
	return nil
}

// lastOutput returns the last output of QEMU and of the guest's console, as part of an error.
func (g *Guest) lastOutput() string {
	text := ""
	if s := strings.TrimSpace(g.proc.stderr.String()); s != "" {
		text += "\nQEMU: " + s
	}
	if s := strings.TrimSpace(g.Console()); s != "" {
		text += "\nconsole: " + s
	}
	return text
}

// Name returns the host name.
func (g *Guest) Name() string { return g.cfg.Name }

// Kernel returns the release of the guest's kernel.
func (g *Guest) Kernel() string { return g.hello.Kernel }

// BootTime returns how long the boot took, by the guest's clock.
func (g *Guest) BootTime() time.Duration { return time.Duration(g.hello.Uptime * float64(time.Second)) }

// Share returns the name of the directory [SharePath] on the host.
func (g *Guest) Share() string { return filepath.Join(g.dir, "share") }

// Console returns the end of the output of the kernel on its console.
func (g *Guest) Console() string {
	b, err := os.ReadFile(filepath.Join(g.dir, "console.log"))
	if err != nil {
		return ""
	}
	return string(b[max(0, len(b)-tailSize):])
}

// Push copies a file of the host, with its mode, into the memory of the guest, and
// returns its name in the guest. A program starts faster from there than from
// [SharePath], where each page is requested from the host.
func (g *Guest) Push(file string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pushLimit)
	defer cancel()
	name := filepath.Base(file)
	shared := filepath.Join(g.Share(), name)
	if err := copyFile(file, shared); err != nil {
		return "", fmt.Errorf("guest: %w", err)
	}
	// cp -T fails if the destination is a directory, instead of copying into it.
	err := g.all(ctx, []string{"mkdir", "-p", pushPath}, []string{"cp", "-fpT", filepath.Join(SharePath, name), filepath.Join(pushPath, name)})
	return filepath.Join(pushPath, name), errors.Join(err, os.Remove(shared))
}

// Install is Push for a program of the host, which commands and shells of the guest then find by
// its name, before a program of the host with the same name.
func (g *Guest) Install(file string) error {
	name, err := g.Push(file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pushLimit)
	defer cancel()
	return g.all(ctx, []string{"ln", "-sfn", name, filepath.Join(firstInPath, filepath.Base(name))})
}

// copyFile copies a file with its mode.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// end records why the guest ends. Only the first reason counts.
func (g *Guest) end(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		g.cause = cause
	}
}

// ended returns why the guest ended, or nil.
func (g *Guest) ended() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause
}

// Close switches the machine off, ends its commands with ErrClosed and removes its files.
// Further calls return the result of the first one.
func (g *Guest) Close() error {
	g.closeOnce.Do(func() {
		g.end(ErrClosed)
		if g.proc != nil {
			g.limit.Stop()
			g.proc.kill()
			if g.hello.Kernel != "" {
				<-g.readerDone
			}
			g.closeErr = g.port.Close()
		}
		g.closeErr = errors.Join(g.closeErr, g.dog.remove())
	})
	return g.closeErr
}
