// The page at `/` in a headless browser, used as people use it: `node page.mjs ADDRESS KEY BROWSER`.
import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";

const [address, key, executablePath] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  const outside = [];
  const failed = [];
  page.on("request", (request) => request.url().startsWith(address) || outside.push(request.url()));
  page.on("pageerror", (error) => failed.push(error.message));
  const text = (selector) => page.$eval(selector, (element) => element.textContent);
  const set = (id, value) =>
    page.$eval(`#${id}`, (input, value) => {
      input.value = value;
      input.dispatchEvent(new Event("change"));
    }, value);
  const turns = () => page.$$eval(".turn", (all) => all.map((turn) => [turn.className.slice(5), turn.textContent]));
  const say = async (words) => {
    const said = await page.$$eval(".user", (all) => all.length);
    await page.type("#text", words);
    await page.keyboard.press("Enter");
    // The stop button may be gone before anyone looks for it.
    await page.waitForFunction((said) => document.querySelectorAll(".user").length > said, {}, said);
  };
  const ended = () => page.waitForSelector("#send:not([hidden])", { timeout: 120_000 });

  // Without the key, and then with it.
  await page.goto(address);
  await page.waitForFunction(() => document.getElementById("model").textContent.includes("key"));
  await page.click("summary");
  await set("key", key);
  await page.waitForFunction(() => /context of \d+ tokens/.test(document.getElementById("model").textContent));

  // An answer that comes bit by bit, with its speed, and the same once more by its seed.
  await set("seed", "7");
  await set("max_tokens", "24");
  await page.evaluate(() => {
    window.lengths = new Set();
    const note = () => window.lengths.add(document.querySelector(".assistant")?.textContent.length ?? 0);
    new MutationObserver(note).observe(document.getElementById("turns"), { childList: true, subtree: true });
  });
  await say("Name a colour.");
  await ended();
  const first = await turns();
  assert.deepEqual(first.map(([kind]) => kind), ["user", "assistant"]);
  assert.ok(first[1][1].length > 0, "an answer");
  assert.ok(await page.evaluate(() => window.lengths.size) > 2, "the answer came at once, not streamed");
  assert.match(await text("#speed"), /^\d+ tokens, [\d.]+ tokens\/s; prompt \d+ tokens/);
  await page.click("#clear");
  assert.deepEqual(await turns(), []);
  await say("Name a colour.");
  await ended();
  assert.deepEqual(await turns(), first, "the same seed, another answer");

  // A long answer is seen at work, and ends where it is stopped. This one does not end by itself.
  await set("max_tokens", "4000");
  await page.evaluate(() => {
    window.plainFetch = window.fetch;
    window.fetch = (url, options) => {
      const body = options?.body && JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true });
      return window.plainFetch(url, { ...options, ...(body && { body }) });
    };
  });
  await say("Tell a very long story about a lighthouse, in many chapters.");
  await page.waitForFunction(() => /^[1-9]\d* running/.test(document.getElementById("load").textContent));
  await page.waitForFunction(() => document.querySelectorAll(".assistant")[1]?.textContent.length > 20);
  await page.click("#stop");
  await ended();
  const stopped = (await turns()).at(-1);
  assert.equal(stopped[0], "assistant");
  await page.waitForFunction(() => /^0 running, 0 waiting/.test(document.getElementById("load").textContent));

  // What the server refuses is shown, and the chat goes on.
  await page.evaluate(() => { window.fetch = window.plainFetch; });
  await set("temperature", "-1");
  await say("And now?");
  await ended();
  const [kind, message] = (await turns()).at(-1);
  assert.ok(kind === "error" && message.includes("temperature"), message);
  assert.deepEqual([outside, failed], [[], []], "nothing comes from elsewhere, no script fails");
  console.log("page: ok");
} finally {
  await browser.close();
}
