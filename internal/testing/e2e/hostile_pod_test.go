// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// A pod is a mount namespace with a volume of its own as /run/smcr, which everybody may write to,
// as a new emptyDir of Kubernetes. All containers of the pod are users of it.
type pod struct {
	*lab
	holder *netnstest.Process
}

func (l *lab) newPod() *pod {
	l.t.Helper()
	p := &pod{l, l.A.Go(l.t, "unshare", "--mount", "--propagation", "private", "sh", "-c",
		"mount -t tmpfs -o mode=0777 none /run/smcr && echo mounted && exec sleep 600")}
	if err := p.holder.WaitOutput("mounted", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// in returns a command line that runs argv in the pod.
func (p *pod) in(argv ...string) []string {
	return append([]string{"nsenter", "--mount=/proc/" + strconv.Itoa(p.holder.Pid()) + "/ns/mnt", "--"}, argv...)
}

// run runs a command line in the pod, and returns what it says.
func (p *pod) run(argv ...string) (string, error) {
	argv = p.in(argv...)
	out, err := p.A.Command(p.t.Context(), argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// stack starts a stack in the pod, and returns it when it serves or has ended.
func (p *pod) stack() *netnstest.Process {
	p.t.Helper()
	argv := p.in(bin("smcr"), "serve", "--no-default-eid")
	s := p.A.Go(p.t, argv[0], argv[1:]...)
	_ = s.WaitOutput(saysServing, startTime)
	return s
}

// TestPodVolume: a user of a pod who can write to the volume of the sockets prepares it before there
// is a stack: with a directory, a link, a file, sockets, and a volume with foreign files. The stack
// does not start there, or does not use what the user has made, and nobody trusts the user's sockets.
func TestPodVolume(t *testing.T) {
	l := newLab(t, "setpriv", "nsenter", "unshare")
	server := l.server()
	addr := l.B.Addr() + ":5001"
	base := filepath.Base(l.dirOf(l.A))
	dir := "/run/smcr/" + base
	for name, prepare := range map[string]string{
		"a directory":          "mkdir " + dir,
		"an open directory":    "mkdir -m 0777 " + dir,
		"a link to a place":    "mkdir /run/smcr/mine && ln -s /run/smcr/mine " + dir,
		"a link to nowhere":    "ln -s /run/smcr/none " + dir,
		"a link to others":     "ln -s /etc " + dir,
		"a file":               "touch " + dir,
		"a pipe":               "mkfifo " + dir,
		"a lock":               "mkdir " + dir + " && ln -s /etc/passwd " + dir + "/lock",
		"links for sockets":    "mkdir " + dir + " && ln -s /etc/passwd " + dir + "/nl && ln -s /etc/passwd " + dir + "/takeover",
		"state for the stack":  "mkdir " + dir + " && echo 'ueids: [EVIL]' >" + dir + "/state.yaml",
		"files of others only": "mkdir /run/smcr/1 && touch /run/smcr/1/addresses",
	} {
		t.Run(name, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			p := l.newPod()
			if out, err := p.run(as(hostileUser, "sh", "-c", prepare)...); err != nil {
				t.Fatal(err, out)
			}
			stack := p.stack()
			ended := false
			select {
			case <-stack.Done():
				ended = true
			default:
			}
			if ended && (!strings.Contains(stack.Log(), "/run/smcr") || !strings.Contains(stack.Log(), hostileUser) && !strings.Contains(stack.Log(), "writ")) {
				t.Errorf("the stack does not say why it does not start:\n%s", stack.Log())
			}
			if !ended {
				// Then it has a place that the user cannot change, and others trust it.
				l.exchanges(otherUser, addr, p.in()...)
				if out, err := p.run(as(hostileUser, "sh", "-c", "rm -rf "+dir+" || mv "+dir+" "+dir+".old || touch "+dir+"/x")...); err == nil {
					t.Errorf("the user changes the place of the stack: %s", out)
				}
				terminate(t, stack)
			}
			if out, err := p.run("sh", "-c", "cat /etc/passwd && test ! -e /etc/lock && test ! -e /etc/nl"); err != nil || !strings.HasPrefix(out, "root:") {
				t.Errorf("files outside of the volume: %v\n%.200s", err, out)
			}
			p.holder.Kill()
		})
	}
	terminate(t, server)
}

// TestPodUser: what a user who has the directory of a node's or a pod's sockets can do to them.
func TestPodUser(t *testing.T) {
	l := newLab(t, "setpriv", "nsenter", "unshare")
	server := l.server()
	addr := l.B.Addr() + ":5001"
	p := l.newPod()
	stack := p.stack()
	dir := "/run/smcr/" + filepath.Base(l.dirOf(l.A))
	for _, script := range []string{
		"rm -f %s/nl && ! test -e %s/nl", "rm -f %s/takeover && ! test -e %s/takeover", "rm -f %s/lock && ! test -e %s/lock", "mv %s/nl %s/nl.old",
		"ln -sfT /tmp %s/nl", "ln -f %s/takeover /run/smcr/takeover", "chmod 0777 %s", "chmod 0777 %s/takeover", "chown " + hostileUser + " %s/nl", "touch %s/new", "mkdir %s/state",
		"mv %s /run/smcr/other", "mkdir /run/smcr/other", "ln -s /tmp /run/smcr/other", "chmod 0777 /run/smcr", "cat %s/lock", "echo x >%s/addresses", "mount -t tmpfs none %s",
		"setfattr -n user.x -v y %s",
	} {
		if out, err := p.run(as(hostileUser, "sh", "-c", strings.ReplaceAll(script, "%s", dir))...); err == nil {
			t.Errorf("%s succeeds: %s", script, out)
		}
		// The same as root of a user namespace with a mount namespace, as in a container.
		if out, err := p.run(as(hostileUser, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", strings.ReplaceAll(script, "%s", dir))...); err == nil && !strings.HasPrefix(script, "mount") {
			t.Errorf("%s succeeds in a user namespace: %s", script, out)
		}
	}
	for _, uid := range []string{"0", otherUser} {
		l.exchanges(uid, addr, p.in()...)
	}
	terminate(t, stack)
	terminate(t, server)
}

// TestContainerRoot: the root of a user namespace, and a user with all capabilities there, change
// nothing of a stack by any command: the stack knows them as the user of the host.
func TestContainerRoot(t *testing.T) {
	l := newLab(t, "setpriv", "unshare")
	stack, server := l.serve(l.A), l.server()
	l.smcr(l.A, "--backend", "user", "pnet", "add", "NET1", "--netdev", "eth0")
	client := l.under(l.A, bin("probe"), "client", l.B.Addr()+":5001", "1", "-busy")
	if err := client.WaitOutput("holding 1 connections", startTime); err != nil {
		t.Fatal(err)
	}
	group := l.groupIDs(l.A)
	rows, err := l.rows(l.A, "link")
	if err != nil || len(rows) == 0 {
		t.Fatal(rows, err)
	}
	listing := func() string {
		return l.smcr(l.A, "--backend", "user", "export") + l.smcr(l.A, "--backend", "user", "ueid", "list") + l.groupIDs(l.A)
	}
	before := listing()
	file := filepath.Join(filepath.Dir(bin("smcr")), "evil.yaml")
	if err := os.WriteFile(file, []byte("pnetids:\n  - pnetid: EVIL\n    netdev: eth0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	address := "unix:" + filepath.Join(l.dirOf(l.A), "nl")
	whos := map[string][]string{
		"a user": nil,
		// In the second one, root of the host is user 65534, too: the client trusts the stack.
		"the root of a user namespace":             {"unshare", "--user", "--map-root-user"},
		"all capabilities in a user namespace":     {"unshare", "--user", "--map-user=" + hostileUser, "--map-group=" + hostileUser, "--keep-caps"},
		"the root of a user and a mount namespace": {"unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"},
	}
	for who, wrapper := range whos {
		for _, command := range []string{
			"pnet add NET2 --netdev eth0", "pnet delete NET1", "pnet flush", "ueid add BAD.EID", "ueid delete SMCR-USERSTACK", "ueid flush",
			"hslimit enable", "hslimit disable", "linkgroup delete " + group, "link delete " + group + " " + fmt.Sprint(rows[0]["id"]), "trace -c 1", "apply " + file,
		} {
			for _, backend := range []string{"user", address} {
				argv := slices.Concat(wrapper, []string{bin("smcr"), "--backend", backend}, strings.Fields(command))
				out, err := l.asUser(hostileUser, argv...)
				trusts := wrapper == nil || backend == address && slices.Contains(wrapper, "--map-user="+hostileUser)
				if err == nil || trusts && !strings.Contains(strings.ToLower(out), "not permitted") && !strings.Contains(out, "ermission") && !strings.Contains(out, "only root") {
					t.Errorf("%s: %s at %s: %v, want that the stack refuses it\n%s", who, command, backend, err, out)
				}
			}
		}
	}
	if now := listing(); now != before {
		t.Errorf("the state has changed:\n%s\nbefore:\n%s", now, before)
	}
	if log := client.Log(); strings.Contains(log, "ended") {
		t.Errorf("a connection of root:\n%s", log)
	}
	terminate(t, client)
	terminate(t, server)
	terminate(t, stack)
}
