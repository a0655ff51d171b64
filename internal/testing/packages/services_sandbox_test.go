// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// boxedProgram is a server that says what it may do: its user, who it thinks it is, and what it can execute, make, and open.
const boxedProgram = `#!/usr/bin/perl
use strict; use Socket;
$| = 1;
my $port = shift;
my $any = sub { my ($family, $type) = @_; socket(my $s, $family, $type, 0) or return; $s };
my $map = do { open(my $f, '<', '/proc/self/uid_map') or die; join ' ', split ' ', <$f> };
my $udp = $any->(AF_INET, SOCK_DGRAM);
my $other = $any->(AF_INET, SOCK_STREAM);
my @says = (
  'uid=' . ($< == 0 ? 'root' : 'other'), 'users=' . ($map eq '0 0 4294967295' ? 'all' : 'own'),
  'exec=' . (system('/usr/bin/true') == 0 ? 'yes' : 'no'), 'chroot=' . (chroot('/') ? 'yes' : 'no'),
  'unix=' . ($any->(AF_UNIX, SOCK_STREAM) ? 'yes' : 'no'), 'netlink=' . ($any->(16, SOCK_RAW) ? 'yes' : 'no'),
  'loopback=' . (send($udp, 'x', 0, pack_sockaddr_in(9, inet_aton('127.0.0.1'))) ? 'yes' : 'no'),
  'bind=' . (bind($other, pack_sockaddr_in($port + 1000, INADDR_ANY)) ? 'yes' : 'no'));
my $l = $any->(AF_INET, SOCK_STREAM) or die $!;
setsockopt($l, SOL_SOCKET, SO_REUSEADDR, 1);
bind($l, pack_sockaddr_in($port, inet_aton('` + addressA + `'))) && listen($l, 9) or die $!;
while (accept(my $c, $l)) { send($c, "@says\n", 0); close $c }
`

// boxes are units with what forbids something to the program, and what the program says then. Debian's systemd has no SocketBindDeny=,
// which it ignores.
var boxes = []struct{ name, settings, says string }{
	{"plain", "", "uid=root users=all exec=yes chroot=yes unix=yes netlink=yes loopback=yes bind=yes"},
	{"privateusers", "PrivateUsers=yes\n", "users=own"},
	{"noexec", "NoExecPaths=/\nExecPaths=/usr/local/bin/boxed /usr/bin/perl /usr/lib /usr/lib64\n", "exec=no"},
	{"filter", "SystemCallFilter=@system-service\nSystemCallFilter=~bpf chroot\nSystemCallErrorNumber=EPERM\n", "chroot=no"},
	{"families", "RestrictAddressFamilies=AF_INET\n", "unix=no netlink=no"},
	{"deny", "IPAddressDeny=any\nIPAddressAllow=" + addressB + "\n", "loopback=no"},
	{"binddeny", "SocketBindDeny=any\nSocketBindAllow=ipv4:tcp:%d\n", "uid=root"},
	{"dynamicuser", "DynamicUser=yes\n", "uid=other"},
	{"all", "DynamicUser=yes\nPrivateUsers=yes\nNoExecPaths=/\nExecPaths=/usr/local/bin/boxed /usr/bin/perl /usr/lib /usr/lib64\nSystemCallFilter=@system-service\n" +
		"SystemCallFilter=~bpf chroot\nSystemCallErrorNumber=EPERM\nRestrictAddressFamilies=AF_INET\nIPAddressDeny=any\nIPAddressAllow=" + addressB +
		"\nSocketBindDeny=any\nSocketBindAllow=ipv4:tcp:%d\nProtectSystem=strict\nPrivateTmp=yes\nPrivateDevices=yes\nProtectProc=invisible\nProcSubset=pid\n" +
		"MemoryDenyWriteExecute=yes\nRestrictNamespaces=yes\nNoNewPrivileges=yes\nCapabilityBoundingSet=\n", "uid=other users=own exec=no chroot=no unix=no netlink=no loopback=no"},
}

// TestServiceSandboxes: a unit may forbid its program what it wants. Enabled, its connections use SMC-R without a restart, and after one, and the
// program may do what it could before, and no more.
func TestServiceSandboxes(t *testing.T) {
	need(t, debTools...)
	a, b, _ := bootSystemd(t, "own")
	a.must("dpkg -i " + a.put(pack(t, "deb", newer)))
	a.must("systemctl start " + strings.Join(stackUnits, " "))
	if err := os.WriteFile(a.path("/usr/local/bin/boxed"), []byte(boxedProgram), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, box := range boxes {
		t.Run(box.name, func(t *testing.T) {
			a.in(t)
			s := service{unit: "box-" + box.name, port: 8100 + i, answer: "uid="}
			settings := box.settings
			if strings.Contains(settings, "%d") {
				settings = fmt.Sprintf(settings, s.port)
			}
			text := fmt.Sprintf("[Service]\nExecStart=/usr/local/bin/boxed %d\n%s", s.port, settings)
			if err := os.WriteFile(a.path("/etc/systemd/system/"+s.unit+".service"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			a.must("systemctl daemon-reload && systemctl start " + s.unit)
			a.wantListens(s)
			before, pid := b.must(s.ask()), a.mainPID(s.unit)
			for _, want := range strings.Fields(box.says) {
				if !strings.Contains(" "+before+" ", " "+want+" ") {
					t.Errorf("without smcr, the program says %q, want %s", before, want)
				}
			}
			b.talk(s, false)
			a.must("smcr service enable --wait=0 " + s.unit)
			b.talk(s, true)
			if now := a.mainPID(s.unit); now != pid {
				t.Errorf("process %s, before %s", now, pid)
			}
			a.must("systemctl restart " + s.unit)
			a.wantListens(s)
			b.talk(s, true)
			if now := b.must("smcr run -- " + s.ask()); now != before {
				t.Errorf("enabled, the program says %q, before %q", now, before)
			}
			a.must("smcr service disable " + s.unit)
			b.talk(s, false)
			a.must("systemctl stop " + s.unit)
		})
	}
}
