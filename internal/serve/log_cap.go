// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"io"
	"os"
)

const (
	// maxLog is the size in bytes at which a log file is shortened, logHead and logTail what
	// stays of its beginning, which says how the stack was started, and of its end.
	maxLog  = 4 << 20
	logHead = 32 << 10
	logTail = 1 << 20
)

// cutNote is the line in place of what was removed.
const cutNote = "level=INFO msg=\"older lines were removed here: the log has its largest size\"\n"

// cappedLog writes to a file that is open for reading and appending, and shortens it when it is
// full. One goroutine may write at a time.
type cappedLog struct {
	f                *os.File
	size             int64
	most, head, tail int64
}

// capLog returns a writer that keeps w from growing without limit if it is a file that this
// process may read, such as the log of a stack that smcr run has started. Otherwise it returns w.
func capLog(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok {
		return w
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return w
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); err != nil && err != io.EOF {
		return w
	}
	return &cappedLog{f: f, size: st.Size(), most: maxLog, head: logHead, tail: logTail}
}

// Write implements io.Writer.
func (c *cappedLog) Write(b []byte) (int, error) {
	if c.size+int64(len(b)) > c.most {
		c.shorten()
	}
	n, err := c.f.Write(b)
	c.size += int64(n)
	return n, err
}

// shorten keeps whole lines of the beginning and the end. If that fails, the file is empty
// afterwards, or as before.
func (c *cappedLog) shorten() {
	st, err := c.f.Stat()
	if err != nil {
		return
	}
	head, tail := make([]byte, c.head), make([]byte, c.tail)
	n, _ := c.f.ReadAt(head, 0)
	head = head[:bytes.LastIndexByte(head[:n], '\n')+1]
	n, _ = c.f.ReadAt(tail, max(st.Size()-c.tail, int64(len(head))))
	tail = tail[:n]
	tail = tail[bytes.IndexByte(tail, '\n')+1:]
	if c.f.Truncate(0) != nil {
		return
	}
	c.size = 0
	for _, part := range [][]byte{head, []byte(cutNote), tail} {
		n, err := c.f.Write(part)
		if c.size += int64(n); err != nil {
			return
		}
	}
}
