// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	switch {
	case os.Getpid() == 1:
		err := boot()
		fmt.Fprintln(os.Stderr, "smcr guest:", err)
		unix.Sync()
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		time.Sleep(time.Minute) // the machine stops in this time
	case len(os.Args) == 2 && os.Args[1] == serveArg && os.Getppid() == 1:
		fmt.Fprintln(os.Stderr, "smcr guest:", serve())
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "agent: the first process of a test guest, of no use elsewhere")
		os.Exit(2)
	}
}

// serveArg is the argument of the child that runs commands.
const serveArg = "serve"

// boot makes the system, starts the child and reaps all orphans.
func boot() error {
	if err := makeSystem(); err != nil {
		return err
	}
	child, err := os.StartProcess("/proc/self/exe", []string{"agent", serveArg}, &os.ProcAttr{
		Env:   environment(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	for {
		switch pid, err := unix.Wait4(-1, nil, 0, nil); {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case pid == child.Pid:
			return fmt.Errorf("the agent ended")
		}
	}
}

// environment returns the environment of the guest's commands.
func environment() []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "SMCR_GUEST=" + parameter("smcr.name"),
	}
	if term := parameter("smcr.term"); term != "" {
		env = append(env, "TERM="+term)
	}
	return env
}

// parameter returns the value of a kernel parameter, or "".
func parameter(name string) string {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for f := range strings.FieldsSeq(string(line)) {
		if v, ok := strings.CutPrefix(f, name+"="); ok {
			return v
		}
	}
	return ""
}
