// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

const limit = testkind.Patience

// build builds a program of the module in a directory and returns its path.
func build(t *testing.T, dir, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", file, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return file
}

// output runs a program on a host and returns what it wrote to standard output and to standard
// error.
func output(t *testing.T, h *netnstest.Host, argv ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := h.Command(ctx, argv[0], argv[1:]...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, said.String())
	}
	return out.String(), said.String()
}

// serve starts a server and waits until it listens.
func serve(t *testing.T, h *netnstest.Host, argv ...string) *netnstest.Process {
	t.Helper()
	p := h.Go(t, argv[0], argv[1:]...)
	if err := p.WaitOutput("listening on", limit); err != nil {
		t.Fatal(err, p.Log())
	}
	return p
}

// TestWeb: a client of net/http gets files of a server of net/http, and several over one
// connection.
func TestWeb(t *testing.T) {
	netnstest.Require(t, "nsenter")
	web := build(t, ".", "./web")
	hosts := netnstest.New(t, netnstest.Options{})
	dir := t.TempDir()
	big := bytes.Repeat([]byte("over RDMA\n"), 1<<18)
	for name, content := range map[string][]byte{"big": big, "small": []byte("small")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	server := serve(t, hosts.A, web, "-listen", ":8080", "-dir", dir)
	url := "http://" + hosts.A.Addr() + ":8080/"
	got, said := output(t, hosts.B, web, url+"big", url+"small")
	if want := string(big) + "small"; got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	for side, said := range map[string]string{"client": said, "server": server.Log()} {
		if n := strings.Count(said, ": SMC-R\n"); n != 1 {
			t.Errorf("%s: %d connections over SMC-R, want one:\n%s", side, n, said)
		}
	}
	end(t, server)
}

// end stops a server, which must end in order.
func end(t *testing.T, p *netnstest.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(limit); err != nil {
		t.Errorf("the server: %v\n%s", err, p.Log())
	}
}

// TestRPC: calls and streams of gRPC.
func TestRPC(t *testing.T) {
	netnstest.Require(t, "nsenter")
	rpc := build(t, ".", "./rpc")
	hosts := netnstest.New(t, netnstest.Options{})
	server := serve(t, hosts.A, rpc, "-listen", ":5000")
	client := hosts.B.Go(t, rpc, hosts.A.Addr()+":5000")
	if err := client.WaitOutput("watched: SERVING", limit); err != nil {
		t.Fatal(err, client.Log())
	}
	// The stream tells that the server ends.
	end(t, server)
	if err := client.Wait(limit); err != nil {
		t.Errorf("the client: %v", err)
	}
	for _, want := range []string{": SMC-R: true\n", "now: SERVING\n", "watched: NOT_SERVING\n"} {
		if !strings.Contains(client.Log(), want) {
			t.Errorf("no %q in:\n%s", want, client.Log())
		}
	}
}

// postgres are the programs of PostgreSQL 15 in Debian 12.
const postgres = "/usr/lib/postgresql/15/bin/"

// TestSQL: database/sql with a stack of its own, and an unmodified PostgreSQL server under
// smcr run.
func TestSQL(t *testing.T) {
	netnstest.Require(t, "nsenter", "setpriv")
	if _, err := os.Stat(postgres + "initdb"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("PostgreSQL 15 is not installed: sudo scripts/setup-test-tools")
	}
	owner, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	query, smcr := build(t, ".", "./sql"), build(t, "../..", "./cmd/smcr")
	hosts := netnstest.New(t, netnstest.Options{})

	// The server refuses to run as root, and its user cannot enter the test's directories.
	dir, err := os.MkdirTemp("", "smcr-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	uid, err := strconv.Atoi(owner.Uid)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.Atoi(owner.Gid)
	if err := errors.Join(err, os.Chown(dir, uid, gid)); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	as := []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"}
	output(t, hosts.A, append(as, postgres+"initdb", "-D", data, "--no-sync", "-A", "trust")...)
	access := "host all postgres " + hosts.B.Addr() + "/32 trust\n"
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(access), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"run", "--mode", "user", "-v", "--"}, as...)
	server := hosts.A.Go(t, smcr, append(argv, postgres+"postgres", "-D", data,
		"-c", "listen_addresses="+hosts.A.Addr(), "-c", "unix_socket_directories="+dir, "-c", "fsync=off")...)
	if err := server.WaitOutput("ready to accept connections", limit); err != nil {
		t.Fatal(err, server.Log())
	}

	got, said := output(t, hosts.B, query, "postgres://postgres@"+hosts.A.Addr()+"/postgres?sslmode=disable",
		"select n, repeat('x', 100) from generate_series(1, 20000) as n")
	if n := strings.Count(got, ","+strings.Repeat("x", 100)+"\n"); n != 20000 || !strings.HasPrefix(got, "1,x") {
		t.Errorf("%d rows, want 20000", n)
	}
	if !strings.Contains(said, ": SMC-R: true\n") {
		t.Errorf("the connection is not SMC-R:\n%s", said)
	}
	end(t, server)
	if !strings.Contains(server.Log(), "1 connection over SMC-R, 0 over TCP") {
		t.Errorf("the server's side:\n%s", server.Log())
	}
}
