// Sends the files of a model in pieces, and goes on where the server says that a file ends. Touches no page and asks
// the server through `io` alone.

const NAME = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$/;
const MOST_TRIES = 8;
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15_000;

/** Which of the chosen files a model has, and which are left out; `endings` are the legal ones. */
export function sorted(files, endings) {
  const fits = (file) => NAME.test(file.name) && endings.some((ending) => file.name.endsWith(ending));
  const taken = new Map(files.filter(fits).map((file) => [file.name, file]));
  return { taken: [...taken.values()], left: files.filter((file) => !fits(file)).map((file) => file.name) };
}

export const size = (files) => files.reduce((sum, file) => sum + file.size, 0);

/** Whether a request that failed may do better later: no connection, a busy server, too many requests. */
export const mayPass = (error) => error.status === 0 || error.status === 429 || error.status >= 500;

/** How long to wait before the next attempt, of those in a row that brought nothing. */
export const pause = (tries) => Math.min(FIRST_WAIT_MS * 2 ** (tries - 1), LONGEST_WAIT_MS);

/**
 * Send what the server lacks of an upload. `upload` is what the server said of it, `io` has send(name, offset, blob),
 * which answers {received}, wait(ms, cause) and sent(bytes). Throws what the server refuses for good.
 */
export async function sendAll(upload, files, io) {
  let before = 0;
  for (const told of upload.files) {
    const file = files.find((one) => one.name === told.name);
    let [at, tries] = [told.received, 0];
    while (at < file.size) {
      io.sent(before + at);
      try {
        const piece = file.slice(at, Math.min(at + upload.piece_bytes, file.size));
        at = (await io.send(file.name, at, piece)).received;
        tries = 0;
      } catch (error) {
        // A piece whose answer was lost has arrived all the same: the server knows how far the file is.
        const moved = error.status === 409 && Number.isInteger(error.problem?.received);
        tries += 1;
        if ((!moved && !mayPass(error)) || tries > MOST_TRIES) throw error;
        if (moved) at = error.problem.received;
        else await io.wait(pause(tries), error);
      }
    }
    before += file.size;
  }
  io.sent(before);
}
