// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"syscall"

	"smcr/internal/oplog"
	"smcr/internal/runs"
	"smcr/internal/sdnotify"
)

// startRuns starts the process of serveRuns, if there is none, for a stack that root starts as another user. Who asks it from now on
// is answered.
func startRuns() {
	if err := startRunsProcess(); err != nil && !errors.Is(err, os.ErrExist) {
		oplog.New(os.Stderr, slog.LevelInfo).Warn("programs of other users than root stay TCP", "err", err)
	}
}

func startRunsProcess() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	socket, err := runs.Listen()
	if err != nil {
		return err
	}
	defer socket.Close()
	cmd, err := startOwnCgroup(func() *exec.Cmd {
		cmd := exec.Command(exe, "serve", "--runs", "--on-demand")
		cmd.Dir = "/"
		cmd.Env = sdnotify.Unmanaged(os.Environ())
		cmd.ExtraFiles = []*os.File{socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd
	}, nil)
	if err == nil {
		go func() { _ = cmd.Wait() }() // no zombie
	}
	return err
}
