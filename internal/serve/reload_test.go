// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/testing/netnstest"
)

// hangupEnv makes the test binary a process that ends on SIGHUP, or when its standard input
// ends.
const hangupEnv = "SMCR_HANGUP_TEST"

// awaitHangup is the main function of that process.
func awaitHangup() {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	fmt.Println("ready")
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(1)
	}()
	<-hangup
	fmt.Println("hangup")
	os.Exit(0)
}

// another starts a process that says "ready" and goes on until the test ends.
func another(t *testing.T, exe string, argv ...string) (pid int, out *bufio.Reader) {
	t.Helper()
	cmd := &exec.Cmd{Path: exe, Args: argv, Dir: t.TempDir(), Env: []string{hangupEnv + "=1", "WATCHDOG_USEC=7"}}
	// A shell takes its second argument for the name of this file.
	if err := os.WriteFile(filepath.Join(cmd.Dir, "serve"), []byte("echo ready\nread x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	out = bufio.NewReader(stdout)
	if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd.Process.Pid, out
}

// TestReloadSame checks that a stack with the installed program gets SIGHUP.
func TestReloadSame(t *testing.T) {
	pid, out := another(t, "/proc/self/exe", "smcr", "serve", "--netdev", "eth0")
	if err := Reload(t.Context(), pid); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); err != nil || line != "hangup\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestReloadOther checks what is learned of a stack with another program, and that a process
// that cannot take over is reported.
func TestReloadOther(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	pid, _ := another(t, bash, "smcr", "serve", "--netdev", "nonesuch0")
	p, err := running(pid)
	if err != nil || p.same || !slices.Equal(p.flags, []string{"--netdev", "nonesuch0"}) || !slices.Contains(p.env, "WATCHDOG_USEC=7") {
		t.Errorf("%+v, %v", p, err)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Reload(t.Context(), pid); !errors.Is(err, ErrReload) || !errors.Is(err, errNoManager) {
		t.Errorf("without a service manager: %v", err)
	}
	name := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv(serveEnv, "1")
	netnstest.Require(t)
	if err := Reload(t.Context(), pid); !errors.Is(err, ErrReload) || !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), "nonesuch0") {
		t.Errorf("the flags of the old stack are wrong: %v", err)
	}
}

// TestReloadNothing checks processes that are not a stack.
func TestReloadNothing(t *testing.T) {
	if err := Reload(t.Context(), os.Getpid()); !errors.Is(err, ErrReload) || !errors.Is(err, errNotServe) {
		t.Errorf("a process that is not smcr serve: %v", err)
	}
	if err := Reload(t.Context(), 1<<30); !errors.Is(err, ErrReload) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}

// TestWithFlags checks that a stack that has taken over once gets the same flags the next time.
func TestWithFlags(t *testing.T) {
	want := []string{"--netdev", "eth0", "--takeover", "--" + reportFlag}
	flags := []string{"--netdev", "eth0"}
	for range 2 {
		if flags = withFlags(flags, "--takeover", "--"+reportFlag); !slices.Equal(flags, want) {
			t.Errorf("%q, want %q", flags, want)
		}
	}
}

// TestSameCgroup checks processes in this cgroup, and no process.
func TestSameCgroup(t *testing.T) {
	if same, err := sameCgroup(os.Getpid()); err != nil || !same {
		t.Errorf("this process: %v, %v", same, err)
	}
	if same, err := sameCgroup(1 << 30); !errors.Is(err, fs.ErrNotExist) || same {
		t.Errorf("no process: %v, %v", same, err)
	}
}
