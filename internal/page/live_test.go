// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"image/png"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/userstack"
)

var shots = flag.String("page.shots", "", "write the screenshots to this `directory`")

// shortRefresh makes the test faster. The listings are a second old or more, anyway.
const shortRefresh = 200 * time.Millisecond

// serveOn serves a page on a host, at a loopback address, and returns its address.
func serveOn(t *testing.T, host *netnstest.Host, h http.Handler) string {
	t.Helper()
	var l net.Listener
	err := host.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return "http://" + l.Addr().String() + "/"
}

// keep writes a screenshot where the flag says, and checks that it is an image that shows
// something.
func keep(t *testing.T, name string, shot []byte) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	colours := map[[3]uint32]bool{}
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y += 3 {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			colours[[3]uint32{r, g, b}] = true
		}
	}
	if len(colours) < 10 {
		t.Errorf("%s has %d colours", name, len(colours))
	}
	if *shots != "" {
		if err := os.WriteFile(filepath.Join(*shots, name+".png"), shot, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// fits checks that nothing on the page is wider than the window, and that no text is small.
func (b *browser) fits(name string) {
	b.t.Helper()
	if got := b.eval("[document.documentElement.scrollWidth, innerWidth]"); got != "[1200,1200]" && got != "[400,400]" {
		b.t.Errorf("%s: the page and the window are %s pixels wide", name, got)
	}
	const smallest = `Math.min(...[...document.querySelectorAll('#picture text')].map((e) =>
		parseFloat(e.getAttribute('font-size')) * e.getScreenCTM().a))`
	b.await(smallest + " >= 11.9")
}

// start starts a stack on a host. It ends with the test.
func start(t *testing.T, h *netnstest.Host, name string) *userstack.Stack {
	t.Helper()
	var stack *userstack.Stack
	if err := h.Do(func() (err error) { stack, err = userstack.New(userstack.Config{Hostname: name}); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stack.Close() })
	return stack
}

// sink serves on a host: it reads what clients send. It returns its address.
func sink(t *testing.T, h *netnstest.Host, listen func(network, address string) (net.Listener, error)) string {
	t.Helper()
	var l net.Listener
	if err := h.Do(func() (err error) { l, err = listen("tcp", net.JoinHostPort(h.Addr(), "0")); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for b := make([]byte, 1<<16); err == nil; {
					_, err = c.Read(b)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// talk connects a stack to a server, and sends a block of bytes fifty times a second until
// the end of the test.
func talk(t *testing.T, h *netnstest.Host, stack *userstack.Stack, server string, block int) {
	t.Helper()
	var c net.Conn
	if err := h.Do(func() (err error) { c, err = stack.Dial("tcp", server); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		// Real time: traffic goes on while the page is looked at.
		for b := make([]byte, block); t.Context().Err() == nil; time.Sleep(20 * time.Millisecond) {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
}

// TestBrowser shows the page of a stack with traffic in Chromium: what it shows, how it
// looks, that it refreshes itself, that it stops while nobody looks, and what it says while
// the stack is restarted.
func TestBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Chromium: part of make test-all")
	}
	netnstest.Require(t, "chromium")
	t.Parallel() // it waits most of the time
	lan, err := netnstest.CreateLAN(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lan.Close(); err != nil {
			t.Error(err)
		}
	})
	here := lan.Hosts[0] // the page is about this one
	var stack atomic.Pointer[userstack.Stack]
	stack.Store(start(t, here, "client"))
	if err := stack.Load().OptionError(); err != nil {
		t.Skip("the TCP option is not permitted here:", err)
	}
	web, db := lan.Hosts[1], lan.Hosts[2]
	webServer := sink(t, web, start(t, web, "web").Listen)
	for _, block := range []int{1 << 16, 1 << 12, 1} {
		talk(t, here, stack.Load(), webServer, block)
	}
	talk(t, here, stack.Load(), sink(t, db, start(t, db, "db").Listen), 1<<14)
	talk(t, here, stack.Load(), sink(t, db, net.Listen), 1) // a server without SMC

	var listings atomic.Int32
	page := Config{
		Dial: func(ctx context.Context) (nl.Multi, error) {
			listings.Add(1)
			now := stack.Load()
			if now == nil {
				return nil, nl.ErrNoBackend
			}
			return Stack("user", now.Control())(ctx)
		},
		NetDev: func(i uint32) (name string) {
			_ = here.Do(func() error {
				if dev, err := net.InterfaceByIndex(int(i)); err == nil {
					name = dev.Name
				}
				return nil
			})
			return name
		},
		Version: "1.2.3",
	}
	h := New(page)
	h.(*handler).every = shortRefresh
	b := newBrowser(t, here, serveOn(t, here, h))

	// The picture, the figures and the tables.
	b.await(`document.title === 'SMC on client' && document.getElementById('status').textContent === 'Live'`)
	for _, want := range []string{"Link group ", "web", "db", web.Addr(), db.Addr(), "link 1 ACTIVE", "link 2 ACTIVE", "client, SMC v2, SYM", "eth1"} {
		b.await(`[...document.querySelectorAll('#picture svg text')].some((e) => e.textContent.includes('` + want + `'))`)
	}
	b.await(`document.getElementById('stacks').innerText.includes('Over SMC-R now\n4')`)
	b.await(`document.getElementById('stacks').innerText.includes('Became TCP, open now\n1\nBecame TCP since start\n1')`)
	// Each number says of when it is.
	b.await(`[...document.querySelectorAll('#stacks dt, #links th.number, #connections th.number, #fallbacks th.number')].every((e) => / now$| so far$| since start$|^Link$/.test(e.textContent))`)
	b.await(`document.querySelectorAll('#links tbody tr').length === 4`)
	b.await(`document.querySelectorAll('#connections tbody tr').length === 5`)
	b.await(`[...document.querySelectorAll('#fallbacks tbody td')].some((e) => e.textContent === 'the peer does not speak SMC')`)
	b.await(`document.querySelector('#picture svg title').textContent === 'SMC on client'`)

	// It refreshes itself: there are rates, and the bytes of a connection have changed.
	const sent = `document.querySelector('#connections tbody tr td:nth-child(8)').textContent`
	before := b.eval(sent)
	b.await(`[...document.querySelectorAll('#picture svg text')].some((e) => /\d [KM]iB\/s/.test(e.textContent)) && ` + sent + ` !== ` + before)

	// A reason leads to what to do about it. Each connection has its own rates.
	b.await(`[...document.querySelectorAll('#connections td.reason a, #fallbacks td.reason a')].map((a) => a.hash).join() === '#why-peer-no-smc,#why-peer-no-smc'`)
	b.await(`document.getElementById('why-peer-no-smc').innerText.includes('Start the program of the peer with') && document.getElementById('cures-section').offsetHeight > 0`)
	b.await(`[...document.querySelectorAll('#connections tbody tr td:nth-child(10)')].filter((e) => /^↑ \d.* [KM]iB\/s ↓ 0 B\/s$/.test(e.textContent)).length > 1`)
	b.await(`document.querySelector('#connections tbody tr td:nth-child(7)').textContent === 'root (0)'`)

	// How it looks.
	b.fits("wide")
	keep(t, "wide", b.shoot())
	b.eval(`document.querySelector('details').open = true`)
	b.fits("wide with links")
	keep(t, "wide-links", b.shoot())
	b.eval(`document.querySelector('details').open = false`)
	b.size(400, 900)
	b.await(`document.querySelector('#picture svg').viewBox.baseVal.width < 400`)
	b.fits("narrow")
	keep(t, "narrow", b.shoot())
	b.media(map[string]string{"forced-colors": "active"})
	b.size(1200, 800)
	b.await(`document.querySelector('#picture svg').viewBox.baseVal.width > 400`)
	b.await(`getComputedStyle(document.querySelector('#picture .card')).fill === 'rgb(255, 255, 255)'`)
	keep(t, "forced-colors", b.shoot())
	b.media(map[string]string{"prefers-color-scheme": "dark"})
	b.await(`getComputedStyle(document.querySelector('#picture .card')).fill === 'rgb(35, 45, 55)'`)
	if *shots != "" {
		keep(t, "dark", b.shoot())
		b.media(nil)
		b.call("Emulation.setEmulatedVisionDeficiency", object{"type": "achromatopsia"})
		keep(t, "grey", b.shoot())
		b.call("Emulation.setEmulatedVisionDeficiency", object{"type": "none"})
	}
	b.media(nil)

	// The filter.
	filter := func(text string) {
		b.eval(`(() => { const f = document.getElementById('filter'); f.value = '` + text + `'; f.dispatchEvent(new Event('input')); })()`)
	}
	filter("no such text")
	b.await(`document.querySelectorAll('#connections tbody tr').length === 0 && document.querySelector('#connections caption').textContent.startsWith('None of')`)
	filter("smcr")
	b.await(`document.querySelectorAll('#connections tbody tr').length === 4`)
	filter("")

	// It stops while nobody looks: hidden, or paused.
	stands := func(what string) {
		t.Helper()
		b.await(`!asking`)
		n := listings.Load()
		time.Sleep(2 * minAge) // Real time: no listing comes in it.
		if got := listings.Load() - n; got > 0 {
			t.Errorf("%s: %d listings", what, got)
		}
	}
	hide := func(hidden bool) {
		value := map[bool]string{true: "true", false: "false"}[hidden]
		b.eval(`(Object.defineProperty(document, 'hidden', {value: ` + value + `, configurable: true}), document.dispatchEvent(new Event('visibilitychange')))`)
	}
	hide(true)
	stands("hidden")
	n := listings.Load()
	hide(false)
	// The page asks again and again. A listing that took long, on a busy machine, is used for longer.
	if err := netnstest.Until(answerTime, func() error {
		if listings.Load() == n {
			return errors.New("no listing for a viewer who has come back")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	b.eval(`document.getElementById('pause').click()`)
	stands("paused")
	b.await(`document.getElementById('status').textContent === 'Paused' && document.getElementById('pause').textContent === 'Continue'`)
	b.eval(`document.getElementById('pause').click()`)
	b.await(`document.getElementById('status').textContent === 'Live'`)

	// The stack ends and begins again.
	old := stack.Swap(nil)
	b.await(`document.getElementById('status').textContent === 'No answer' && !document.getElementById('trouble').hidden &&
		document.getElementById('trouble').textContent.includes('What you see is older')`)
	keep(t, "restart", b.shoot())
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	stack.Store(start(t, here, "client"))
	b.await(`document.getElementById('status').textContent === 'Live' && document.querySelector('#connections caption').textContent === 'There are no connections.'`)
	b.await(`document.getElementById('trouble').hidden`) // the process is the same one
	talk(t, here, stack.Load(), webServer, 1)
	b.eval(`ask(), 0`)
	b.await(`document.querySelectorAll('#picture svg text').length > 5 && document.querySelectorAll('#connections tbody tr').length === 1`)
	b.wantNoComplaints()
}

// TestBrowserHostile shows the page of a stack in which all names are hostile: they appear as
// text, and run nothing.
func TestBrowserHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Chromium: part of make test-all")
	}
	netnstest.Require(t, "chromium")
	t.Parallel()
	pair := netnstest.New(t, netnstest.Options{})
	fake := nltest.NewFake(poisoned(hostile))
	b := newBrowser(t, pair.A, serveOn(t, pair.A, New(Config{
		Dial: Stack("user"+hostile, fake), NetDev: func(uint32) string { return "eth0" + hostile },
	})))
	b.await(`document.getElementById('status').textContent === 'Live'`)
	b.await(`document.getElementById('heading').textContent.includes('<img src=x onerror=alert(1)>')`)
	b.await(`document.querySelectorAll('#links tbody tr').length === 3 && document.querySelectorAll('#picture svg text').length > 5`)
	if got := b.eval(`[document.querySelectorAll('img').length, document.querySelectorAll('script').length, document.querySelectorAll('#picture script, #picture [onload]').length]`); got != "[0,1,0]" {
		t.Errorf("images and scripts: %s", got)
	}
	if got := b.eval(`document.body.innerText`); strings.Contains(got, "\u202e") || strings.Contains(got, `\u001b`) {
		t.Errorf("control characters in %s", got)
	}
	keep(t, "hostile", b.shoot())
	b.wantNoComplaints()
}
