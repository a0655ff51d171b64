// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// A browser is a headless Chromium on a host with one page. The test talks to it over two
// pipes, with JSON texts that end with a zero byte (the DevTools protocol of Chromium).
type browser struct {
	t       *testing.T
	in      *os.File
	out     *bufio.Reader
	pipe    *os.File
	id      int
	session string
	// complaints are errors of scripts and of the content security policy.
	complaints []string
}

// answerTime is the time in which the browser must answer, and show what is expected.
const answerTime = testkind.Patience

// newBrowser starts a browser on a host. It opens an address.
func newBrowser(t *testing.T, host *netnstest.Host, url string) *browser {
	t.Helper()
	// Chromium reads descriptor 3 and writes to descriptor 4.
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := host.Command(context.Background(), "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--remote-debugging-pipe", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
		"--user-data-dir="+t.TempDir(), "about:blank")
	// Chromium leaves a directory when it is killed. The name of a socket there must be short.
	tmp, err := os.MkdirTemp("", "smcr-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	host.GoCmd(t, cmd)
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, in: in, pipe: out, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		in.Close()
		out.Close()
	})
	target := b.call("Target.createTarget", object{"url": "about:blank"})
	b.session = b.call("Target.attachToTarget", object{"targetId": target["targetId"], "flatten": true})["sessionId"].(string)
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", object{})
	}
	b.size(1200, 800)
	b.call("Page.navigate", object{"url": url})
	b.await(fmt.Sprintf("location.href === %q && document.readyState === 'complete'", url))
	return b
}

type object = map[string]any

// call has the browser do something and returns its answer.
func (b *browser) call(method string, params object) object {
	b.t.Helper()
	answer, err := b.try(method, params)
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	return answer
}

// try is call for what may fail. The error is that of the browser.
func (b *browser) try(method string, params object) (object, error) {
	b.t.Helper()
	b.id++
	msg := object{"id": b.id, "method": method, "params": params}
	if b.session != "" {
		msg["sessionId"] = b.session
	}
	text, err := json.Marshal(msg)
	if err != nil {
		b.t.Fatal(err)
	}
	deadline := time.Now().Add(answerTime)
	if err := errors.Join(b.in.SetWriteDeadline(deadline), b.pipe.SetReadDeadline(deadline)); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		line, err := b.out.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		var got struct {
			ID     int
			Method string
			Params json.RawMessage
			Result object
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(line[:len(line)-1], &got); err != nil {
			b.t.Fatal(err)
		}
		switch {
		case got.ID == b.id && got.Error != nil:
			return nil, errors.New(got.Error.Message)
		case got.ID == b.id:
			return got.Result, nil
		case got.Method == "Runtime.exceptionThrown", got.Method == "Log.entryAdded" && !strings.Contains(string(got.Params), `"source":"network"`),
			got.Method == "Page.javascriptDialogOpening":
			b.complaints = append(b.complaints, fmt.Sprintf("%s %s", got.Method, got.Params))
		}
	}
}

// eval returns the value of a JavaScript expression as JSON.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	value, err := b.tryEval(expression)
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// tryEval is eval for what may fail, for example because the page is being loaded.
func (b *browser) tryEval(expression string) (string, error) {
	b.t.Helper()
	got, err := b.try("Runtime.evaluate", object{"expression": "JSON.stringify(" + expression + ")", "awaitPromise": true, "returnByValue": true})
	if err != nil {
		return "", err
	}
	if e := got["exceptionDetails"]; e != nil {
		return "", fmt.Errorf("%v", e)
	}
	value, _ := got["result"].(object)["value"].(string)
	return value, nil
}

// await waits until a JavaScript expression is true.
func (b *browser) await(expression string) {
	b.t.Helper()
	err := netnstest.Until(answerTime, func() error {
		if got, err := b.tryEval("!!(" + expression + ")"); got != "true" {
			return fmt.Errorf("not true: %s: %v", expression, err)
		}
		return nil
	})
	if err != nil {
		b.t.Fatalf("%v in\n%s", err, b.eval("document.body.innerText"))
	}
}

// size sets the size of the window in pixels.
func (b *browser) size(width, height int) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", object{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
}

// media sets features of the device, such as forced-colors.
func (b *browser) media(features map[string]string) {
	b.t.Helper()
	list := []object{}
	for name, value := range features {
		list = append(list, object{"name": name, "value": value})
	}
	b.call("Emulation.setEmulatedMedia", object{"features": list})
}

// shoot returns the whole page as PNG.
func (b *browser) shoot() []byte {
	b.t.Helper()
	data, _ := b.call("Page.captureScreenshot", object{"format": "png", "captureBeyondViewport": true})["data"].(string)
	png, err := base64.StdEncoding.DecodeString(data)
	if err != nil || len(png) == 0 {
		b.t.Fatalf("no screenshot: %v", err)
	}
	return png
}

// wantNoComplaints fails the test if a script or the policy has reported an error.
func (b *browser) wantNoComplaints() {
	b.t.Helper()
	b.eval("0") // reads what was reported before
	for _, c := range b.complaints {
		b.t.Error(c)
	}
}
